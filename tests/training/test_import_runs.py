"""Import of runs from result files: equal tables, and rejection of unsuitable records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.conftest import MakeFolder
from winnow.cli.main import app
from winnow.errors import ConfigError, DataError
from winnow.protocols import (
    BACKBONES,
    PROTOCOLS,
    ProtocolRequest,
    find_dataset,
    local_executor,
    make_table,
    write_table,
)

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")

WORDS = ["backbone=resnet20", "backbone.weights=random", "backbone.train=frozen", "image.resize=16", "image.crop=16",
         "dim=4", "train.classes_per_batch=3", "train.samples_per_class=2", "train.max_steps=4", "train.eval_steps=2",
         "train.lr=1e-2", "train.device=cpu"]  # fmt: skip


def make_request(
    photos: Path, folder: Path, *methods: str, protocol: str = "conventional", **more: Any
) -> ProtocolRequest:  # fmt: skip
    more = {"overrides": WORDS, "runs": [1, 2], **more}
    return ProtocolRequest(
        PROTOCOLS[protocol], find_dataset(str(photos)), methods, folder, BACKBONES["resnet50"], **more
    )


@pytest.mark.slow
def test_table_without_run_folders_can_be_extended(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=4, size=16)
    first = make_request(photos, tmp_path / "runs", "c2", "c2+gsp-zsr")
    first.train(first.plan(), local_executor())
    before = make_table(first, first.plan())
    write_table(before, first.folder)
    file = tmp_path / "kept.json"
    shutil.move(tmp_path / "runs" / "table.json", file)
    shutil.rmtree(tmp_path / "runs")

    again = make_request(photos, tmp_path / "runs", "c2", "c2+gsp-zsr")
    runs = again.plan()
    assert again.import_results(runs, file) == 4
    after = make_table(again, again.plan())
    assert after.runs == before.runs, "settings, numbers, validations and where they come from"
    assert after.rows == before.rows
    assert after.missing == before.missing
    stamp = runs[0].planned.run_dir.result_file.stat().st_mtime_ns
    assert again.import_results(runs, file) == 4
    assert runs[0].planned.run_dir.result_file.stat().st_mtime_ns == stamp, "what is there is left alone"

    third = make_request(photos, tmp_path / "runs", "c2", "c2+gsp-zsr", runs=[3])
    third.train(third.plan(), local_executor())
    assert [row.finished for row in make_table(third, third.plan()).rows] == [3, 3]


def test_command_imports_runs(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=8, images=4, size=16)
    words = ["protocol", "conventional", str(photos), "c2", *WORDS, "--runs", "1"]
    made = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "here")])
    assert made.exit_code == 0, made.output
    taken = [*words, "-o", str(tmp_path / "there"), "--from", str(tmp_path / "here" / "table.json"), "--only-finished"]
    told = CliRunner().invoke(app, taken)
    assert told.exit_code == 0, told.output
    assert "contains 1 of 3 runs" in told.output
    assert (tmp_path / "there" / "table.csv").read_text() == (tmp_path / "here" / "table.csv").read_text()


def test_unsuitable_records_are_rejected_before_writing(make_folder: MakeFolder, tmp_path: Path) -> None:
    photos = make_folder(classes=16, images=4, size=16)
    first = make_request(photos, tmp_path / "runs", "c2", runs=[1])
    first.train(first.plan(), local_executor())
    table = json.loads(make_table(first, first.plan()).to_json())
    file = tmp_path / "kept.json"
    file.write_text(json.dumps(table))
    new = tmp_path / "new"

    def refused(error: type[Exception], text: str, request: ProtocolRequest, source: Path = file) -> None:
        with pytest.raises(error, match=text):
            request.import_results(request.plan(), source)
        assert not list(new.rglob("*")), "nothing is written"

    slower = make_request(photos, new, "c2", overrides=[*WORDS, "train.lr=1e-3"])
    refused(ConfigError, r"run method=c2,run=1 was made with another train.lr \(0.01 there, 0.001 here\)", slower)
    refused(ConfigError, "none of the planned runs", make_request(photos, new, "ms"))
    refused(ConfigError, "fair protocol concatenates embeddings", make_request(photos, new, "c2", protocol="fair"))
    plain = make_request(photos, new, "c2")
    refused(DataError, "no runs in this file", plain, tmp_path / "nothing.json")
    for text in ("", "[]", '{"runs": 3}'):
        other = tmp_path / "other.json"
        other.write_text(text)
        refused(DataError, "no runs in this file", plain, other)
    del table["runs"][0]["config"]
    file.write_text(json.dumps(table))
    refused(DataError, "lacks the settings", plain)


def test_studies_without_runs_import_none(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["study", "toy-map", "--import-results", str(tmp_path / "a.json")])
    assert isinstance(result.exception, ConfigError)
    assert "it has no runs that take" in str(result.exception)
