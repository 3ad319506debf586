"""The runner of studies: runs are trained once, read afterwards, imported, chosen, and reported when missing."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.conftest import MakeFolder
from tests.studies.grids import request, tiny_grid
from winnow.errors import ConfigError, DataError, MissingExtraError
from winnow.integrity import check_folder
from winnow.studies import GridStudy, Measurement, Scale, Study, StudyRequest, Variant
from winnow.studies.artifacts import StoredRun, keep_run
from winnow.studies.render import read_content, write_report
from winnow.studies.runner import run_studies, run_study, summarize, train_grid
from winnow.studies.settings import pooling, scales
from winnow.studies.spec import Claim, Evidence, StudyReport
from winnow.training.overrides import Overrides
from winnow.training.sweep import read_records

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")

GAP, GMP = Variant("GAP", pooling("gap")), Variant("GMP", pooling("gmp"))
HIGHER = Claim("GAP is higher", "[a source]", lambda s: Evidence(f"{s['GAP']:.2f}", s["GAP"] - s["GMP"]))


@pytest.fixture
def grid(make_folder: MakeFolder) -> GridStudy:
    return tiny_grid(make_folder(), (GAP, GMP), (0, 1), HIGHER)


@pytest.mark.slow
def test_runs_are_trained_once_and_their_table_does_not_change(grid: GridStudy, tmp_path: Path) -> None:
    notes: list[str] = []
    asked = request(grid, tmp_path / "runs", note=notes.append)
    first = run_study(grid, asked)
    assert len(notes) == 4
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.pt")}
    again = run_study(grid, replace(asked, train=False))
    assert again.rows == first.rows
    assert again.claims == first.claims
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.pt")} == stamps
    assert [row["runs"] for row in first.rows] == [2, 2]
    assert first.todo == ""
    assert {(run["method"], run["seed"]) for run in first.runs} == {(m, s) for m in ("GAP", "GMP") for s in (0, 1)}
    for run in first.runs:
        assert run["config"]["seed"] == run["seed"]
        assert run["config"]["pooling"]["name"] == run["method"].lower()
        assert run["command"]
        assert run["machine"]["cores"]


@pytest.mark.slow
def test_a_few_runs_are_trained_now_and_the_others_are_listed_once(grid: GridStudy, tmp_path: Path) -> None:
    asked = request(grid, tmp_path, variants=["GM*"], seeds=[1], options=["-o", "out"])
    report = run_study(grid, asked)
    assert report.missing == {"GAP": [0, 1], "GMP": [0]}
    assert "1 of 4" in report.todo
    assert "`winnow study tiny --quick -o out`" in report.todo
    assert [row["method"] for row in report.rows] == ["GMP"]
    assert [claim.verdict for claim in report.claims] == ["Incomplete"]
    whole = run_study(grid, replace(asked, variants=(), seeds=None))
    assert whole.missing == {}
    recorded = next(run for run in whole.runs if (run["method"], run["seed"]) == ("GMP", 1))
    assert recorded["seconds"] == report.runs[0]["seconds"]  # read, not trained again


def test_an_unfinished_study_does_not_replace_a_table_by_an_empty_one(grid: GridStudy, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run of the study tiny"):
        run_study(grid, request(grid, tmp_path, train=False))


def test_settings_replace_the_studys_and_are_reported(grid: GridStudy, tmp_path: Path) -> None:
    asked = request(grid, tmp_path, overrides=Overrides.parse("train.max_steps=3"), variants=["GAP"], seeds=[0])
    report = run_study(grid, asked)
    assert {run["steps"] for run in report.runs} == {3}
    assert report.settings["asked"] == ["train.max_steps=3"]
    with pytest.raises(ConfigError, match=r"train\.max_steps"):  # the run of that folder has 3 steps
        run_study(grid, replace(asked, overrides=Overrides()))


@pytest.mark.parametrize(
    ("arg", "said"),
    [("pooling=gsp", "pooling"), ("pooling.p=4", "pooling"), ("seed=7", "seeds"), ("train.run_test=false", "run_test")],
)
def test_what_a_study_varies_or_needs_cannot_be_set(grid: GridStudy, arg: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        run_study(grid, request(grid, tmp_path, overrides=Overrides.parse(arg), train=False))


def test_unknown_variants_and_seeds_are_answered_with_those_that_exist(grid: GridStudy, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"GMB.*GMP"):
        train_grid(grid, request(grid, tmp_path, variants=["GMB"]))
    with pytest.raises(ConfigError, match=r"0, 1.*2"):
        train_grid(grid, request(grid, tmp_path, seeds=[2]))


def test_a_missing_folder_of_images_is_one_error_before_training(grid: GridStudy, tmp_path: Path) -> None:
    missing = tiny_grid(tmp_path / "nothing", (GAP,))
    with pytest.raises(DataError, match="nothing"):
        run_study(missing, request(missing, tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_finished_runs_are_imported_from_a_result_file(grid: GridStudy, tmp_path: Path) -> None:
    report = run_study(grid, request(grid, tmp_path / "there", seeds=[0]))
    write_report(report, tmp_path / "out")
    notes: list[str] = []
    asked = request(grid, tmp_path / "here", imports=[tmp_path / "out" / "tiny.json"], train=False, note=notes.append)
    imported = run_study(grid, asked)
    assert imported.rows == report.rows
    assert imported.missing == {"GAP": [1], "GMP": [1]}
    assert "2 of 4" in notes[0]


def test_a_result_file_holds_its_table_claims_and_figure(grid: GridStudy, tmp_path: Path) -> None:
    report = run_study(grid, request(grid, tmp_path / "runs"), note="A note.")
    paths = write_report(report, tmp_path / "out")
    assert {path.suffix for path in paths} == {".csv", ".md", ".json", ".svg", ".png"}
    content = json.loads((tmp_path / "out" / "tiny.json").read_text())
    restored = grid.restore(content)
    assert restored.rows == report.rows
    page = (tmp_path / "out" / "tiny.md").read_text()
    assert page.index("| claim |") < page.index("| method |") < page.index("A note.")


def test_failed_runs_are_named_and_never_replace_results(grid: GridStudy, tmp_path: Path) -> None:
    broken = Variant("wrong", Overrides.parse("backbone.weights=missing.pt"))
    mixed = replace(grid, variants=lambda _: (GAP, broken), claims=())
    asked = request(mixed, tmp_path / "mixed", seeds=[0])
    report = run_study(mixed, asked)
    assert [row["method"] for row in report.rows] == ["GAP"]
    assert len(asked.failed) == 1
    assert "wrong" in asked.failed[0]
    alone = replace(grid, variants=lambda _: (broken,), claims=())
    with pytest.raises(DataError, match="errors above"):
        run_study(alone, request(alone, tmp_path / "alone"))


# --- Several studies --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ends(Study):
    """Study that raises."""

    error: Exception | None = None

    def measure(self, request: StudyRequest) -> Measurement:
        if self.error is not None:
            raise self.error
        return Measurement(rows=[{"method": "a", "MAP@R": 1.0}])

    def figures(self, measured: Measurement) -> dict[str, object]:  # type: ignore[override]
        return {}


def ends(name: str, error: Exception | None = None) -> Study:
    return Ends(
        name=name, title=name, measures="", source="", group="Other", error=error,
        scales=scales(Scale("quick"), Scale("full")),
    )  # fmt: skip


def test_a_study_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    errors = {
        "no-data": (DataError("put it there"), "skipped"),
        "no-extra": (MissingExtraError("tqdm", "studies", "drawing"), "skipped"),
        "refused": (ConfigError("no such key"), "failed"), "fault": (RuntimeError("a fault"), "failed"),
        "whole": (None, "done"),
    }  # fmt: skip
    studies = {name: ends(name, error) for name, (error, _) in errors.items()}
    ended = list(run_studies(studies, lambda study: StudyRequest(study.scales["quick"], tmp_path), tmp_path))
    assert {one.name: one.outcome for one in ended} == {name: outcome for name, (_, outcome) in errors.items()}
    for one in ended:
        error = errors[one.name][0]
        assert error is None or str(error) in one.text
    assert "test_runner.py" in next(one.text for one in ended if one.name == "fault")  # with its traceback
    assert (tmp_path / "whole.json").is_file()
    assert summarize(ended).splitlines()[-1].startswith("1 done, 2 skipped, 2 failed")


def test_choices_are_refused_where_nothing_is_trained(tmp_path: Path) -> None:
    study = ends("alone")
    scale = study.scales["quick"]
    with pytest.raises(ConfigError, match="seed"):
        run_study(study, StudyRequest(scale, tmp_path, overrides=Overrides.parse("seed=1")))
    with pytest.raises(ConfigError, match="data folder"):
        run_study(study, StudyRequest(scale, tmp_path, data=tmp_path))


def test_results_with_a_flipped_bit_are_refused(tmp_path: Path) -> None:
    report = StudyReport(name="tiny", title="Tiny", settings={"small": True}, rows=[{"method": "GAP", "MAP@R": 12.5}])
    paths = write_report(report, tmp_path)
    assert {one.path: one.problem for one in check_folder(tmp_path)} == dict.fromkeys(sorted(paths), "")
    file = tmp_path / "tiny.json"
    assert read_content(file) == report.to_dict()
    file.write_text(file.read_text().replace("12.5", "13.5"))
    for read in (read_content, read_records):
        with pytest.raises(DataError, match=r"tiny\.json.*checksum"):
            read(file)


def test_a_stored_run_with_a_flipped_bit_is_trained_again(tmp_path: Path) -> None:
    notes: list[str] = []
    asked = StudyRequest(Scale("quick"), tmp_path, note=notes.append)
    trained: list[int] = []

    def train() -> StoredRun:
        trained.append(len(trained))
        return StoredRun({"accuracy": 0.5}, {"weights": torch.ones(4)})

    for _ in range(2):
        keep_run(asked, "one", {"steps": 3}, train)
    assert trained == [0]
    file = tmp_path / "one.safetensors"
    content = bytearray(file.read_bytes())
    content[-2] ^= 1  # of a weight: the file still opens
    file.write_bytes(content)
    assert keep_run(replace(asked, train=False), "one", {"steps": 3}, train) is None
    assert "one.safetensors" in notes[-1]
    run = keep_run(asked, "one", {"steps": 3}, train)
    assert run is not None
    assert torch.equal(run.tensors["weights"], torch.ones(4))
    assert trained == [0, 1]
    assert keep_run(replace(asked, train=False), "one", {"steps": 3}, train) is not None
