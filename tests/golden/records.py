"""The files of the golden records: written once by `scripts/golden.py`, read by the tests."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tests.golden import configs, runs, values

HERE = Path(__file__).parent
FILES = HERE / "files"
RTOL, RTOL32 = 1e-10, 2e-4
"""Bounds on another machine: of float64 records, and of float32 ones and what float32 runs come to."""


def processor() -> str:
    """Return the model of the processor."""
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1] if found else "unknown"


def read(name: str) -> Any:
    """Read a record."""
    path = HERE / name
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(content)


def write_json(name: str, content: Any) -> None:
    """Write a record; numbers keep all their digits, and the same content gives the same bytes."""
    text = json.dumps(content, separators=(",", ":")) if name.endswith(".gz") else lines(content)
    path = HERE / name
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0) if name.endswith(".gz") else text.encode())


def lines(content: Mapping[str, Any]) -> str:
    """Return JSON with a line for each entry."""
    entries = ",\n".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in content.items())
    return f"{{\n{entries}\n}}\n"


def same_machine() -> bool:
    """Whether the records were made by this processor and this torch: runs then agree to the last bit."""
    origin = read("origin.json")
    return origin["processor"] == processor() and origin["torch"] == torch.__version__


def write(origin: Mapping[str, Any], folder: Path, *, files: bool) -> None:
    """Write all records.

    Args:
        origin: What they are made by.
        folder: An empty one to work in.
        files: Whether the folders are made anew too.
    """
    write_json("origin.json", origin)
    for group in values.GROUPS:
        write_json(group_file(group), values.compute_group(group))
    write_json("configs.json.gz", configs.pack(configs.compute()))
    made = {}
    for name in runs.LOGS:
        (folder / name).mkdir()
        made[name] = runs.make_log(name, folder / name)
    write_json("logs.json", made)
    if files:
        (folder / "files").mkdir()
        write_json("files.json", runs.make_files(folder / "files"))
        shutil.rmtree(FILES, ignore_errors=True)
        FILES.mkdir()
        for name in runs.KEPT:
            source = folder / "files" / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, FILES / name)
        check_paths(folder)


def check_paths(folder: Path) -> None:
    """Refuse files that hold a path of this machine."""
    for path in [*FILES.rglob("*"), *HERE.glob("*.json")]:
        content = path.read_bytes() if path.is_file() else b""
        for word in (str(folder), str(HERE), str(Path.home())):
            if word.encode() in content:
                raise SystemExit(f"{path} holds the path {word}")


def group_file(group: str) -> str:
    """Return the file of a group of values."""
    return f"values_{group}.json{'.gz' if group == 'poolings' else ''}"


def value_differences(group: str, *, exact: bool) -> Iterator[str]:
    """Yield what differs in a group of values."""
    old, new = read(group_file(group)), json.loads(json.dumps(values.compute_group(group)))
    for key in sorted({*old, *new}):
        rtol = 0.0 if exact else RTOL32 if "float32" in key else RTOL
        if key not in old or key not in new:
            yield f"{key} is {'new' if key not in old else 'missing'}"
        elif (found := values.difference(old[key], new[key], rtol, key)) is not None:
            yield found


def config_differences() -> Iterator[str]:
    """Yield the runs of protocols and studies whose settings differ or that are missing.

    The settings of the record are read as those of an old file, so their old names count as the new ones. Runs of
    methods that are newer than the record have nothing to be compared with.
    """
    kept, new = read("configs.json.gz"), configs.compute()
    old = [configs.a.dump_numbers(configs.a.make_config(tree)) for tree in configs.unpack(kept)]
    for key in sorted(kept["entries"]):
        if key not in new:
            yield f"{key} is missing"
            continue
        entry, made = kept["entries"][key], new[key]
        if not isinstance(entry, list) or not isinstance(made, list):
            if entry != made:
                yield f"{key}: {entry!r} was, {made!r} is"
            continue
        if entry[:-1] != json.loads(json.dumps(made[:-1])):
            yield f"{key}: {entry[:-1]} was, {made[:-1]} is"
        found = values.difference(old[entry[-1]], configs.a.dump_numbers(made[-1]), 0.0, key)
        if found is not None:
            yield found


def run_difference(old: Any, new: Any, where: str, *, exact: bool, lines: int = 1, rtol: float = 0.0) -> str | None:
    """Return the first difference of what runs came to.

    The same machine gives the same bits. On another one training drifts apart, so that what comes before it is
    compared closely, and what comes after it only in kind.

    Args:
        old: The record.
        new: What this code makes.
        where: What it is, for the answer.
        exact: Bit by bit, wherever this runs.
        lines: Lines of a log that come before training.
        rtol: Bound on the same machine.
    """
    new = json.loads(json.dumps(new))
    if exact or same_machine():
        return values.difference(old, new, 0.0 if exact else rtol, where)
    if isinstance(old, Mapping) and "log" in old:
        first = [{key: run[key] for key in BEFORE} | {"log": run["log"][:lines]} for run in (old, new)]
        found = values.difference(*first, RTOL32, where)
        if found is not None:
            return found
    return values.difference(kind(old), kind(new), 0.0, where)


BEFORE = ("untrained", "left_out", "parameters", "data")
"""What is known of a run before it is trained."""


def kind(tree: Any) -> Any:
    """Return what plain values are: keys and texts, a number in place of each, one entry for a list of several."""
    if isinstance(tree, Mapping):
        return {key: kind(one) for key, one in tree.items() if key not in ("best", "last", "fingerprint")}
    if isinstance(tree, list):
        return [kind(one) for one in tree[:1]]
    return 0 if isinstance(tree, int | float) and not isinstance(tree, bool) else type(tree).__name__


def log_difference(name: str, folder: Path, *, exact: bool = False) -> str | None:
    """Return the first difference of one of the four runs."""
    return run_difference(read("logs.json")[name], runs.make_log(name, folder), name, exact=exact)


def differences(*, exact: bool) -> Iterator[str]:
    """Yield all that differs."""
    for group in values.GROUPS:
        yield from value_differences(group, exact=exact)
    yield from config_differences()
    for name in runs.LOGS:
        with TemporaryDirectory() as folder:
            if (found := log_difference(name, Path(folder), exact=exact)) is not None:
                yield found
    with TemporaryDirectory() as folder:
        made = json.loads(json.dumps(runs.make_files(Path(folder))))
        found = run_difference(read("files.json"), made, "files", exact=exact)
        if found is not None:
            yield found
