"""Numbers that 0.1.0 computed, and files it wrote: this code must compute and read the same.

The records are never edited. A renamed part, setting or function is a matter of `adapters.py`; a value that differs is
a finding. `scripts/golden.py --exact` compares bit by bit on the machine that wrote the records.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden import adapters as a
from tests.golden import configs, records, runs, values

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with the photos and a copy of the old files, to work in."""
    shutil.copytree(records.FILES, tmp_path, dirs_exist_ok=True)
    runs.relocate(tmp_path, runs.NOWHERE, str(tmp_path))
    with runs.workplace(tmp_path):
        yield tmp_path


TABLES = 1e-12
"""Bound on the numbers of tables: quantiles of Student's distribution came from another function."""


def same(old: Any, new: Any, lines: int = 1, rtol: float = 0.0) -> None:
    """Check what a run came to against a record."""
    found = records.run_difference(old, new, "", exact=False, lines=lines, rtol=rtol)
    assert found is None, found


@pytest.mark.parametrize("group", list(values.GROUPS))
def test_parts_compute_the_same(group: str) -> None:
    found = list(records.value_differences(group, exact=False))
    assert not found, "\n".join(found[:10])


@pytest.mark.slow
def test_protocols_and_studies_plan_the_same_runs() -> None:
    found = list(records.config_differences())
    assert not found, f"{len(found)} differ:\n" + "\n".join(found[:10])


def test_old_settings_are_read_and_written_again() -> None:
    """A config that this code writes reads as the old one does."""
    for tree in configs.unpack(records.read("configs.json.gz"))[::40]:
        config = a.make_config(tree)
        assert a.make_config(a.dump(config)) == config


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name != "gsp-zsr" else name for name in runs.LOGS]
)
def test_runs_come_to_the_same(name: str, tmp_path: Path) -> None:
    found = records.log_difference(name, tmp_path)
    assert found is None, found


def test_an_old_run_that_was_broken_off_goes_on_to_the_same(place: Path) -> None:
    made = a.run_command("train", "--resume", "interrupted")
    assert made.exit_code == 0, made.output
    result = json.loads(Path("interrupted/result.json").read_text())
    same(records.read("files.json")["interrupted"], runs.summary(Path("interrupted"), result), lines=4)


def test_an_old_finished_run_is_read(place: Path) -> None:
    old = records.read("files.json")["finished"]
    same(old["log"], runs.history(Path("finished")))
    result = a.read_result(Path("finished"))
    assert result is not None
    same(old["metrics"], result["metrics"])
    made = a.run_command("evaluate", "finished", "--json")
    if made.exit_code == 2:  # there is no such option
        made = a.run_command("evaluate", "finished")
    assert made.exit_code == 0, made.output
    config = a.load_config("finished/config.yaml")
    present = a.dump_numbers(a.load_config(None, runs.FINISHED))
    assert a.dump_numbers(config) == present | {"train": a.dump_numbers(config)["train"]}


@pytest.mark.parametrize("name", ["finished/model", "netvlad"])
def test_an_old_model_encodes_the_same(name: str, place: Path) -> None:
    old = records.read("files.json")
    old = old["finished"]["encoded"] if name.startswith("finished") else old[name]
    made = runs.encoded(Path(name))
    assert made["fingerprint"] == old["fingerprint"], "every index of this model would be refused"
    assert np.allclose(made["vectors"], old["vectors"], atol=1e-5)
    if records.same_machine():
        assert made == old
    embedder = a.Embedder.from_pretrained(name)
    embedder.save_pretrained("again")
    assert np.array_equal(a.Embedder.from_pretrained("again").encode(runs.QUERIES), embedder.encode(runs.QUERIES))
    assert runs.encoded(Path("again"))["fingerprint"] == old["fingerprint"]


def test_an_old_index_answers_the_same(place: Path) -> None:
    found = values.difference(records.read("files.json")["index"], runs.searched(Path("index")), 1e-3)
    assert found is None, found
    # Images are put in by the model of the index, with the fingerprint that it was built by.
    shutil.copy("photos/class_03/1.png", "photos/class_04/9.png")
    made = a.run_command("index", "finished/model", "photos", "-o", "index")
    assert made.exit_code == 0, made.output
    assert len(a.Index.open("index")) == 65


def test_old_vectors_are_those_of_the_model(place: Path) -> None:
    from safetensors import safe_open

    made = a.run_command("embed", "finished/model", "photos", "-o", "again.safetensors")
    assert made.exit_code == 0, made.output
    with safe_open("vectors.safetensors", "np") as old, safe_open("again.safetensors", "np") as new:
        assert set(old.keys()) == set(new.keys())
        assert old.metadata() == new.metadata()
        for key in old.keys():  # noqa: SIM118
            assert np.allclose(old.get_tensor(key), new.get_tensor(key), atol=1e-5)


@pytest.mark.slow
def test_an_old_sweep_goes_on_to_the_same(place: Path) -> None:
    planned = a.read_sweep(Path("sweep"))
    assert len(planned) == 4
    made = a.run_command("train", "--resume", "sweep")
    assert made.exit_code == 0, made.output
    same(records.read("files.json")["sweep"], runs.outcome_of_sweep(Path("sweep")))


def test_an_old_protocol_goes_on_to_the_same(place: Path) -> None:
    made = a.run_command("protocol", "ablation", "photos", *runs.METHODS, *runs.PROTOCOL, "-o", "protocol")
    assert made.exit_code == 0, made.output
    same(records.read("files.json")["protocol"], runs.outcome_of_protocol(Path("protocol")), rtol=TABLES)


def test_the_runs_of_an_old_table_are_taken_in(place: Path) -> None:
    made = a.run_command(
        "protocol", "ablation", "photos", *runs.METHODS, *runs.PROTOCOL, "-o", "taken", "--from", "table.json",
        "--only-finished",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    same(records.read("files.json")["protocol"]["rows"], runs.outcome_of_protocol(Path("taken"))["rows"], rtol=TABLES)


def test_an_old_search_for_settings_goes_on_to_the_same(place: Path) -> None:
    pytest.importorskip("optuna", reason="needs the optuna extra")
    made = a.run_command("tune", *runs.TUNE, "--trials", "3", "-o", "tune")
    assert made.exit_code == 0, made.output
    # A trial that was broken off has a number of its own, so that trials are compared without theirs.
    old, new = ([{**row, "trial": ""} for row in csv.DictReader(lines)]
                for lines in (records.read("files.json")["tune"], runs.outcome_of_tune(Path("tune"))))  # fmt: skip
    if records.same_machine():
        assert new == old
    else:
        assert [row["loss"] for row in new] == [row["loss"] for row in old]
