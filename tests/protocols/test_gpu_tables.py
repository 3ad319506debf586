"""The queue of tables that need a GPU: its commands, and that it continues where it stopped."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeFolder
from winnow.cli.protocol import CHAPTERS
from winnow.protocols import ProtocolRequest, find_backbone, find_dataset, find_protocol
from winnow.protocols.methods import is_method
from winnow.protocols.spec import find_budget
from winnow.studies import STUDIES

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("gpu_tables", ROOT / "scripts/gpu_tables.py")
assert spec is not None
assert spec.loader is not None
queue: Any = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = queue  # where dataclasses look for it
spec.loader.exec_module(queue)


@pytest.mark.parametrize("table", queue.TABLES, ids=lambda table: table.name)
def test_every_command_has_a_plan(table: Any, tmp_path: Path) -> None:
    if not table.is_protocol:
        assert table.words[1] in STUDIES
        return
    name, dataset, *words = table.words[1:]
    options = {}
    while any(word.startswith("--") for word in words):
        at = next(index for index, word in enumerate(words) if word.startswith("--"))
        options[words[at]] = words[at + 1]
        del words[at : at + 2]
    request = ProtocolRequest(
        protocol=find_protocol(name, CHAPTERS[options.pop("--paper", "gsp")]),
        dataset=find_dataset(dataset),
        methods=[word for word in words if is_method(word)],
        folder=tmp_path,
        backbone=find_backbone("resnet50"),
        overrides=[word for word in words if not is_method(word)],
        budget=find_budget(options.pop("--budget", "early-stop")),
    )
    assert set(options) <= {"--runs"}
    runs = request.plan()
    assert {run.method for run in runs} == {str(method) for method in request.specs}
    assert all(run.planned.config.train.precision == "bf16-mixed" for run in runs)


def test_tables_of_one_folder_do_not_run_at_the_same_time() -> None:
    first, second, other = (queue.Table(name, folder, "", ("protocol",), 1) for name, folder in ("ax", "bx", "cy"))
    assert queue._next([second, other], [first]) is other
    assert queue._next([second], [first]) is None
    assert queue._next([second, other], []) is second


@pytest.mark.slow
def test_an_interrupted_queue_continues(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=16)
    table = queue.Table(
        "tiny", "tiny", "a test of the queue", ("protocol", "fair", "cub200", "c2", "ms", "--runs", "1", queue.BF16), 1
    )
    options = {"concurrent": 1, "jobs": None, "tiny": photos}
    folder = tmp_path / "queue"
    folder.mkdir()
    assert queue.train([table], folder, minutes=0.02, **options) == {"tiny": "interrupted"}
    assert queue.train([table], folder, minutes=5, **options) == {"tiny": "finished"}
    results = {path: path.stat().st_mtime_ns for path in folder.glob("tiny/*/*/result.json")}
    assert len(results) == 8
    assert (folder / "tiny" / "table.json").is_file()
    assert queue.train([table], folder, minutes=5, **options) == {"tiny": "finished"}
    assert results == {path: path.stat().st_mtime_ns for path in results}
