"""Resolved configs of protocols and studies: the content of `configs.json.gz`.

A config is kept as what it differs in from one base; a list of paths and values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.golden import adapters as a

SETS = ("cub200", "cars196", "sop", "inshop")
NOTHING = "no grid of runs"


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted keys; an empty mapping and keys with dots stay values."""
    if isinstance(tree, dict) and tree and not any("." in key for key in tree):
        return {key: value for name, one in tree.items() for key, value in flat(one, f"{prefix}.{name}").items()}
    return {prefix.removeprefix("."): tree}


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys as nested settings."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        node = tree
        for name in path:
            node = node.setdefault(name, {})
        node[last] = value
    return tree


def methods() -> list[str]:
    """Return the methods of the tables, every loss, and two losses with every addition."""
    rows, added, losses = a.method_names()
    added = [one for one in added if one not in ("gap", "gap_gmp")]  # those of a method without a pooling
    every = [*rows, *losses, *(f"c2+{one}" for one in added), *(f"pnca+{one}" for one in added)]
    return list(dict.fromkeys(every))


def protocol_configs() -> Iterator[tuple[str, Any]]:
    """Yield the name and the config of one run of every method in every protocol, chapter and set."""
    folder = Path("nowhere")
    names = methods()
    refused = (a.find("winnow.errors:ConfigError"),)
    for protocol, chapter in a.protocol_names():
        for target in SETS:
            for method in names:
                if target not in ("cub200", "sop") and method not in a.method_names()[0]:
                    continue  # small and large sets differ in the additions; the presets are those of the rows
                key = f"{protocol}-{chapter} {target} {method}"
                try:
                    runs = a.protocol_runs(a.protocol_task(protocol, chapter, target, [method], folder, once=True))
                except refused as error:
                    yield key, type(error).__name__
                    continue
                ((_, path, config),) = runs
                yield key, [path, config]
        for backbone in ("bn_inception",):
            for method in ("c2+gsp", "pa"):
                task = a.protocol_task(protocol, chapter, "cub200", [method], folder, backbone=backbone, once=True)
                ((_, path, config),) = a.protocol_runs(task)
                yield f"{protocol}-{chapter} cub200 {method} {backbone}", [path, config]
        task = a.protocol_task(
            protocol, chapter, "cub200", ["c2+gsp,pooling.eps=20", "ms"], folder, words=["train.precision=bf16-mixed"]
        )
        for method, path, config in a.protocol_runs(task):
            yield f"{protocol}-{chapter} all runs {path}", [method, config]


def study_configs() -> Iterator[tuple[str, Any]]:
    """Yield the name and the config of the first run of every variant of every study, in both sizes."""
    for name in a.study_names():
        for small in (True, False):
            runs = a.study_runs(name, small, Path("nowhere"))
            key = f"study {name} {'small' if small else 'full'}"
            if runs is None:
                yield key, NOTHING
                continue
            for variant, seeds, folder, config in runs:
                yield f"{key}: {variant}", [list(seeds), folder, config]


def compute() -> dict[str, Any]:
    """Return all, with configs as objects."""
    before = os.environ.pop("WINNOW_DATA", None)
    try:
        with TemporaryDirectory() as empty, chdir(empty):  # no data and no weights there
            return dict([*protocol_configs(), *study_configs()])
    finally:
        if before is not None:
            os.environ["WINNOW_DATA"] = before


def pack(found: dict[str, Any]) -> dict[str, Any]:
    """Return what is written: a base, the distinct differences from it, and for each name which it has."""
    dumped = {
        key: flat(a.dump(value[-1])) for key, value in found.items() if isinstance(value, list)
    }  # fmt: skip
    base = next(iter(dumped.values()))
    distinct: dict[str, int] = {}
    entries: dict[str, Any] = {}
    for key, value in found.items():
        if not isinstance(value, list):
            entries[key] = value
            continue
        config = dumped[key]
        other = {name: one for name, one in config.items() if name not in base or base[name] != one}
        text = json.dumps([other, sorted(set(base) - set(config))])
        entries[key] = [*value[:-1], distinct.setdefault(text, len(distinct))]
    return {"base": base, "configs": [json.loads(text) for text in distinct], "entries": entries}


def unpack(kept: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the distinct configs as trees in the words of 0.1.0."""
    return [
        nested({key: value for key, value in {**kept["base"], **other}.items() if key not in gone})
        for other, gone in kept["configs"]
    ]
