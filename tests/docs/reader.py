"""Reader of a page: runs its Python, saves its files, and runs its commands.

All pages together take a minute, because commands get further arguments that make them small (`SMALLER`), and load few
classes of the bundled emoji dataset (`in_small`). Files that a page uses without making them, such as `photos`, are
provided when it first names them (`Belongings`).
"""

from __future__ import annotations

import importlib
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
import start
import yaml
from fastapi.testclient import TestClient

import benchmarks.__main__
import benchmarks.losses
import benchmarks.pooling
import benchmarks.serve
import winnow.data.emoji
import winnow.demo
import winnow.serve.app
import winnow.training.build
import winnow.training.run
from tests.docs.blocks import ROOT, Block, words_of
from tests.serve.samples import served
from winnow.cli import run
from winnow.data import Splits
from winnow.data.datasets import DATASETS, Dataset, Source
from winnow.data.emoji import load_emoji
from winnow.index import Index
from winnow.serve import create_app
from winnow.training import make_config

TINY = ["image.resize=32", "image.crop=32", "train.max_steps=2", "train.eval_steps=1", "train.warmup_steps=0",
        "train.projection_init=random", "train.device=cpu"]  # fmt: skip
NETWORK = ["backbone=resnet20", "backbone.weights=random"]
SMALLER: dict[str, list[str]] = {
    "demo": ["--seeds", "1", "--steps", "2"],
    "train": TINY,
    "tune": [*TINY, "--trials", "2"],
    "protocol": [*TINY, "--runs", "1"],
    "study components": [*TINY, *NETWORK],
    "study mu": [*TINY, *NETWORK, "--seeds", "0"],
    "serve": ["--port", "0"],  # concurrent tests need different ports
    "benchmarks evaluate": ["--count", "200", "--deep", "0", "--repeats", "1", "--dim", "8"],
    "benchmarks index": ["--count", "10000", "--queries", "4", "--images", "2", "--repeats", "1"],
    "benchmarks losses": ["--classes", "12", "--dim", "8", "--repeats", "1"],
    "benchmarks pooling": ["--batch", "2", "--size", "9x8x4", "--repeats", "1"],
    "benchmarks serve": ["--seconds", "0.5", "--clients", "1"],
    "benchmarks train": ["--backbone", "resnet20", "--crop", "16", "--batch", "8", "--jobs", "1", "--steps", "1",
                         "--repeats", "1"],
}  # fmt: skip
"""Arguments that are appended to a command; of two values of one argument the last counts."""


class Belongings:
    """Files that pages use without making them: name on a page to file or folder.

    Args:
        made: Files and folders.
        datasets: Benchmark datasets with small counts, whose folders `made` has as `data/NAME`.
        archives: Folder with the archives of the datasets that can be downloaded.
    """

    def __init__(self, made: dict[str, Path], datasets: Sequence[Dataset], archives: Path) -> None:
        self.made = made
        self.datasets = datasets
        self.archives = archives

    def provide(self, words: Sequence[str]) -> None:
        """Copy the files that words name to the current folder, unless they exist or the command makes them."""
        words = [*words, *(word for file in words if file.endswith(".yaml") for word in Path(file).read_text().split())]
        if words[0] == "winnow" and words[1] in ("train", "protocol"):
            named = {word.rpartition("=")[2] for word in words}
            words += [f"data/{one.name}" for one in self.datasets if one.name in named]
        outs = {following for word, following in pairwise(words) if word in ("--out", "-o", "--to")}
        for name, source in self.made.items():
            spellings = (name, f"@{name}")
            named = any(word.rpartition("=")[2] in spellings or word.startswith(f"{name}/") for word in words)
            if named and name not in outs and not Path(name).exists():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copytree(source, name) if source.is_dir() else shutil.copy(source, name)


class Reader:
    """Runs one page in the current folder; names of its Python are shared by its blocks."""

    def __init__(self, belongings: Belongings) -> None:
        self.belongings = belongings
        self.names: dict[str, Any] = {"__name__": "page"}

    def follow(self, block: Block) -> None:
        """Run a block."""
        if block.title is not None:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # Blank lines in front give tracebacks the line numbers of the page.
            exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), self.names)
        if block.language == "yaml":
            make_config(yaml.safe_load(block.text))
        if block.language == "diff":
            apply(block.text)
        for line in block.commands():
            self.type(line, f"{block.page.name}:{block.line}: {line}")

    def type(self, line: str, where: str) -> None:
        """Run one console line in this process; its exit code must be 0."""
        words, target = words_of(line.replace("/scratch/", "scratch/"))
        variables = [words.pop(0) for _ in list(words) if "=" in words[0]]
        self.belongings.provide(words)
        said = StringIO()
        before = dict(os.environ)
        os.environ.update(word.split("=", 1) for word in variables)
        try:
            with redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
                in_small(patch)
                # A program starts without datasets that other programs added.
                small = {one.name: one for one in self.belongings.datasets}
                patch.setattr(DATASETS, "_datasets", {**DATASETS._datasets, **small})
                with downloads(self.belongings, patch):
                    code = PROGRAMS[words[0]](words[1:])
        finally:
            os.environ.clear()
            os.environ.update(before)
        assert code == 0, f"{where} ended with {code}\n{said.getvalue()}"
        if target is not None:
            Path(target).write_text(said.getvalue(), encoding="utf-8")


def call_winnow(words: list[str]) -> int:
    """Run the command line with small settings."""
    if "--resume" in words:  # the page resumes an interrupted run
        for result in Path(words[words.index("--resume") + 1]).rglob("result.json"):
            result.unlink()
        return ended(run, ["winnow", *words])
    return ended(run, ["winnow", *smaller(words)])


def smaller(words: list[str]) -> list[str]:
    """Return the arguments of a command with the arguments that make it small."""
    published = NETWORK if words[0] == "protocol" and "cub200" in words else []  # instead of a ResNet-50
    return [*words, *published, *SMALLER.get(words[0], SMALLER.get(" ".join(words[:2]), []))]


def call_start(words: list[str]) -> int:
    """Run a task of `start.py` in the environment of these tests."""
    assert words[0] == "start.py"
    program = start.TASKS[words[1]][1][-1]
    if program[0] != "winnow":
        return 0
    if not Path("src").exists():
        return call_winnow([*program[1:], *words[2:]])
    command = [sys.executable, "-m", "winnow", *smaller([*program[1:], *words[2:]])]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": "src"}, check=False).returncode


def call_python(words: list[str]) -> int:
    """Run a benchmark, or a script of the page or the checkout that takes the arguments of winnow's command line."""
    if words[:2] == ["-m", "benchmarks"]:
        return ended(benchmarks.__main__.main, smaller(words[1:]))
    script = words[0] if Path(words[0]).is_file() else str(ROOT / words[0])
    return ended(lambda: runpy.run_path(script, run_name="__main__"), [words[0], *smaller(words[1:])])


def call_cp(words: list[str]) -> int:
    """Copy a file; a target in `src` gets a copy of the source of winnow first."""
    check_out(words[1])
    shutil.copy(*words)
    return 0


def call_curl(words: list[str]) -> int:
    """Send a request to a service of the index that the page served before; only the port differs from the page."""
    assert words[0] == "--data-binary"
    content = Path(words[1].removeprefix("@")).read_bytes()
    with served(Index.open("photos.index")) as address:
        requested = urlsplit(words[2])
        url = f"{address.rstrip('/')}{requested.path}?{requested.query}"
        with urlopen(Request(url, data=content, method="POST"), timeout=30) as response:
            print(response.read().decode())
    return 0


def call_torchrun(words: list[str]) -> int:
    """Start two processes instead of the number on the page."""
    assert words[0] == "--nproc-per-node"
    module = words.index("-m") + 2
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "winnow"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([*command, *smaller(words[module:])], env=environment, check=False).returncode


PROGRAMS: dict[str, Callable[[list[str]], int]] = {
    "winnow": call_winnow, "python3": call_start, "python": call_python, "cp": call_cp, "curl": call_curl,
    "torchrun": call_torchrun,
}  # fmt: skip


@contextmanager
def downloads(belongings: Belongings, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve the archives of small datasets from this machine instead of their public addresses."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(belongings.archives))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for one in belongings.datasets:
            here = [Source(f"http://127.0.0.1:{server.server_port}/{file.file}", file.file) for file in one.sources]
            patch.setattr(one, "sources", tuple(here))
        yield
        server.shutdown()


def check_out(path: str) -> None:
    """Copy the source of winnow to the current folder before a page changes it."""
    if path.startswith("src/") and not Path("src").exists():
        shutil.copytree(ROOT / "src", "src", ignore=shutil.ignore_patterns("__pycache__"))


def apply(diff: str) -> None:
    """Apply a diff; the context of each hunk must occur exactly once in the file."""
    for part in diff.split("--- ")[1:]:
        path, _, body = part.partition("\n")
        check_out(path)
        text = Path(path).read_text()
        for piece in body.split("@@\n"):
            lines = piece.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -")
            assert text.count(before) == 1, f"{path} has not once: {before}"
            text = text.replace(before, "".join(line[1:] for line in lines if line[0] in " +"))
        Path(path).write_text(text)


def ended(work: Callable[[], object], words: list[str]) -> int:
    """Return the exit code of a program that reads `sys.argv`."""
    before = sys.argv
    sys.argv = words
    try:
        work()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0


def request_page_and_search(
    index: Any, listener: Any, host: str, *, limits: Any, token: str | None, names: Sequence[str] = ()
) -> None:
    """Replace `winnow.serve.app.serve`, which ends with Ctrl-C: request the page and a search."""
    listener.close()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with TestClient(create_app(index, limits=limits, token=token), headers=headers) as client:
        assert "winnow" in client.get("/").text
        assert client.get(f"/api/similar/{int(index.ids[0])}").json()["neighbours"]


def small_emoji(**settings: Any) -> Splits:
    """Return few classes of the bundled emoji dataset, with few images."""
    whole = load_emoji(**{**settings, "images_per_class": 2})
    assert whole.test is not None
    shown = whole.test.class_names.index("hot beverage")
    return Splits(whole.train.select_classes(range(12)), whole.val.select_classes(range(6)),
                  whole.test.select_classes(range(shown - 6, shown + 1)))  # fmt: skip


def in_small(patch: pytest.MonkeyPatch) -> None:
    """Have commands see little, benchmarks measure no memory, and a service end by itself."""
    for module in (benchmarks.losses, benchmarks.pooling):
        patch.setattr(module, "peak_memory", lambda work, device: None)  # it collects garbage before each call
    patch.setattr(benchmarks.serve, "_WARM_UP_ROUNDS", 2)
    for module in (winnow.demo, winnow.training.build, winnow.training.run, winnow.data.emoji):
        patch.setattr(module, "load_emoji", small_emoji)
    patch.setattr(winnow.serve.app, "serve", request_page_and_search)


def load_hook(name: str) -> Any:
    """Import a module of docs/hooks, which import each other by their names."""
    folder = str(Path(__file__).resolve().parents[2] / "docs/hooks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)
