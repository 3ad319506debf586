"""Comparing methods: finished runs are kept, changed settings noticed, tables made of what there is."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.conftest import TINY, MakeFolder
from winnow.cli import run
from winnow.errors import ConfigError
from winnow.losses import LOSSES
from winnow.pooling import POOLINGS
from winnow.studies import STUDIES, losses
from winnow.studies.base import Findings, Task
from winnow.studies.cub_losses import comparison as cub_comparison
from winnow.studies.cub_poolings import comparison as cub_poolings
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import findings, records
from winnow.training.objective import check_components, check_objective

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


def winnow(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run a command line and return its exit code."""
    monkeypatch.setattr("sys.argv", ["winnow", *words])
    with pytest.raises(SystemExit) as end:
        run()
    return int(end.value.code or 0)


def small(folder: Path, *methods: Method, seeds: tuple[int, ...] = (0, 1)) -> Comparison:
    words = [f"data={folder}", *TINY, "train.device=cpu", "train.max_steps=2", "train.eval_steps=1"]
    return Comparison(methods, seeds, words)


def test_runs_are_trained_once_and_a_broken_comparison_goes_on(make_folder: MakeFolder, tmp_path: Path) -> None:
    gap, gsp = Method("GAP!", ["pooling=gap"], "a"), Method("GSP", ["pooling=gsp"], "b", {"thesis": 1.5})
    compared = small(make_folder(), gap, gsp)
    told: list[str] = []
    half = Comparison([gap], [0], compared.words)
    half.train(Task(True, runs=tmp_path / "runs", note=told.append))
    (done,) = (tmp_path / "runs").glob("*/result.json")
    stamp = done.stat().st_mtime_ns

    found = compared.train(Task(True, runs=tmp_path / "runs", only_finished=True))
    assert {name: len(runs) for name, runs in found.items()} == {"GAP!": 1, "GSP": 0}
    rows = compared.rows(found)
    assert rows[1]["MAP@R"] is None
    assert [row["missing"] for row in rows] == ["seed 1", "seeds 0, 1"]
    assert math.isclose(rows[0]["MAP@R"], 100 * found["GAP!"][0]["metrics"]["test"]["MAP@R"], abs_tol=0.01)
    assert rows[0]["MAP@R sd"] is None

    found = compared.train(Task(True, runs=tmp_path / "runs", note=told.append))
    assert done.stat().st_mtime_ns == stamp, "a finished run is read, not trained again"
    assert len(told) == 1 + 4
    rows = compared.rows(found)
    assert [row["runs"] for row in rows] == [2, 2]
    assert all("missing" not in row for row in rows)
    values = [100 * run["metrics"]["test"]["MAP@R"] for run in found["GSP"]]
    assert math.isclose(rows[1]["MAP@R"], sum(values) / 2, abs_tol=0.006)
    assert math.isclose(rows[1]["MAP@R sd"], abs(values[0] - values[1]) / math.sqrt(2), abs_tol=0.006)
    assert rows[1]["thesis"] == 1.5
    assert [(one["method"], one["seed"]) for one in records(found)] == [(m, s) for m in ("GAP!", "GSP") for s in (0, 1)]
    figure = compared.figure(found, "both")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["GAP!", "GSP"]


def test_a_changed_setting_is_noticed(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    small(folder, Method("a", ["pooling=gap"]), seeds=(0,)).train(Task(True, runs=tmp_path))
    with pytest.raises(ConfigError, match=r"made with another train\.lr"):
        small(folder, Method("a", ["pooling=gap", "train.lr=0.5"]), seeds=(0,)).train(Task(True, runs=tmp_path))


def test_what_methods_differ_in_is_left_to_the_study(make_folder: MakeFolder, tmp_path: Path) -> None:
    methods = [Method("GAP", ["pooling=gap"]), Method("GSP", ["pooling=gsp", "pooling.mu=0.2"])]
    compared = small(make_folder(), *methods)
    for word in ("pooling=gmp", "pooling.name=gmp", "pooling.eps=2", "pooling.mu=0.5"):
        with pytest.raises(
            ConfigError, match=f"{word.partition('=')[0].removesuffix('.name')}: the methods of this study"
        ):
            compared.train(Task(True, runs=tmp_path / "runs", words=[word]))
    assert compared.plan(methods[0], 0, Task(True, runs=tmp_path, words=["dim=8"])).config.dim == 8


def test_nothing_finished_makes_no_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mu.md").write_text("of before")
    assert winnow(monkeypatch, "study", "mu", "--only-finished", "-o", str(tmp_path)) == 3
    assert "no run of mu is finished" in capsys.readouterr().err
    assert (tmp_path / "mu.md").read_text() == "of before"


def test_data_is_for_studies_that_read_some(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["toy-map"], ["mu"], ["iterations", "--full"]):
        assert winnow(monkeypatch, "study", *words, "--data", "/nowhere") == 2
        assert f"the study {words[0]} reads none in its" in capsys.readouterr().err


def test_the_config_of_cub_comes_with_the_package_and_its_data_may_be_elsewhere(tmp_path: Path) -> None:
    compared = cub_comparison(False)
    run = compared.plan(compared.methods[0], 0, Task(False, runs=tmp_path, data=tmp_path / "birds"))
    assert run.config.data.path == str(tmp_path / "birds")
    assert compared.plan(compared.methods[0], 0, Task(False, runs=tmp_path)).config.data.path == "data/cub200_2011"


def test_a_failing_run_is_told_and_left_out(make_folder: MakeFolder, tmp_path: Path) -> None:
    told: list[str] = []
    bad = Method("bad", ["pooling=gap", "augment.transform=nothing:here", "backbone.train=full"])
    found = small(make_folder(), bad, Method("good", ["pooling=gap"]), seeds=(0,)).train(
        Task(True, runs=tmp_path, note=told.append)
    )
    assert found["bad"] == []
    assert len(found["good"]) == 1
    assert any("nothing:here" in text for text in told)


@pytest.mark.parametrize("small_size", [True, False])
def test_every_registered_loss_takes_part(small_size: bool, tmp_path: Path) -> None:
    compared = losses.comparison(small_size)
    names = [compared.plan(method, 0, Task(True, runs=tmp_path)).config.loss.name for method in compared.methods]
    assert set(names) == set(LOSSES)
    assert len(names) == 2 * len(set(names))


def test_the_methods_on_cub_are_what_their_names_say(tmp_path: Path) -> None:
    compared = cub_comparison(small=False)
    for method in compared.methods:
        config = compared.plan(method, 0, Task(True, runs=tmp_path)).config
        check_components(config)
        check_objective(config)
        assert (config.references.name == "ccp") == ("CCP" in method.name)
        assert (config.references.name == "memory") == ("XBM" in method.name)
        assert (config.regularizer.name == "none") == (method.group != "centres")
        assert config.train.freeze_backbone_steps == (100 if "Proxy" in method.name else 0)
        if "R1" in method.name:
            assert method.name.endswith(str(config.regularizer.toward))


def test_every_pooling_is_compared_on_cub(tmp_path: Path) -> None:
    compared = cub_poolings(small=False)
    configs = {method.name: compared.plan(method, 0, Task(True, runs=tmp_path)).config for method in compared.methods}
    for config in configs.values():
        check_components(config)
        check_objective(config)
    assert {config.pooling.name for config in configs.values()} == set(POOLINGS) - {"rk_fbp"}
    assert {name for name, config in configs.items() if config.dim != 128} == {"OTP 64x128", "NetVLAD 64x128"}
    assert {name for name, config in configs.items() if config.zsr.weight} == {"ZSR alone (mu = 1)", "GSP + ZSR"}
    assert configs["GSP, background"].pooling.mu == pytest.approx(1 - configs["GSP"].pooling.mu)


@pytest.mark.parametrize(("words", "told"), [
    ([], "ResNet-50 v1 fine-tuned with C2, 128 numbers for an image where the name says no other, Adam 1e-5"),
    (["backbone.train=frozen", "train.lr=1e-4"], "ResNet-50 v1, which is not trained, with C2"),
])  # fmt: skip
def test_the_poolings_paragraph_says_how_the_backbone_was_trained(
    tmp_path: Path, words: Sequence[str], told: str
) -> None:
    found = STUDIES["cub-poolings"](Task(False, runs=tmp_path, only_finished=True, words=words))
    assert told in found.text


def test_methods_with_one_run_are_counted_where_others_have_several(tmp_path: Path) -> None:
    def run(seed: int) -> dict[str, object]:
        return {"config": {"seed": seed}, "metrics": {"test": {"MAP@R": 0.1 * seed}}}

    compared = Comparison([Method("a", []), Method("b", []), Method("c", [])], seeds=(0, 1))

    def put_together(*counts: int) -> Findings:
        found = {name: [run(seed) for seed in range(count)] for name, count in zip("abc", counts, strict=True)}
        rows = [
            {"method": name, "runs": len(runs), "missing": "seed 1" * (len(runs) < 2)} for name, runs in found.items()
        ]
        return findings(Task(True, runs=tmp_path), "mu", "", "", compared, found, Figure(), rows)

    def text(*counts: int) -> str:
        return put_together(*counts).text

    assert "4 of 6 runs are in" in text(2, 1, 1)
    assert "2 methods have one run" in text(2, 1, 1)
    assert "1 method has one run" in text(2, 2, 1)
    assert "one run" not in text(1, 1, 1)
    assert "one run" not in text(2, 2, 0)
    assert "what seeds deviate by is that of the others" in text(2, 2, 1)
    assert "what seeds deviate by" not in text(2, 1, 1)  # one does not speak for two
    assert "Without a run, and so not in the table, is c." in text(2, 2, 0)
    assert "Without a run, and so not in the table, are b; c." in text(2, 0, 0)
    assert put_together(2, 0, 1).details["missing"] == {"b": "seeds 0, 1", "c": "seed 1"}
    assert [row["method"] for row in put_together(2, 0, 1).rows] == ["a", "c"]
    assert "missing" not in put_together(2, 0, 2).rows[0]  # nothing is, of those in the table
    assert "not in the table" not in text(0, 0, 0)
    assert len(put_together(0, 0, 0).rows) == 3  # what is planned, before there is anything


def test_studies_are_listed_and_unknown_ones_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert winnow(monkeypatch, "study", "--list") == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in STUDIES)
    assert winnow(monkeypatch, "study", "loses") == 2
    assert "did you mean 'losses'" in capsys.readouterr().err


def test_a_study_writes_table_figure_and_settings(
    monkeypatch: pytest.MonkeyPatch, make_folder: MakeFolder, tmp_path: Path
) -> None:
    compared = small(make_folder(), Method("GAP", ["pooling=gap"]), seeds=(0,))
    monkeypatch.setattr(losses, "comparison", lambda size: compared)
    monkeypatch.setattr(losses, "LOSSES", {})
    assert winnow(monkeypatch, "study", "losses", "-o", str(tmp_path / "out")) == 0
    content = json.loads((tmp_path / "out" / "losses.json").read_text())
    assert content["rows"][0]["method"] == "GAP"
    assert content["runs"][0]["config"]["pooling"] == {"name": "gap"}
    assert {path.suffix for path in (tmp_path / "out").glob("losses.*")} == {".csv", ".md", ".svg", ".png", ".json"}
    assert "| GAP | 1 |" in (tmp_path / "out" / "losses.md").read_text()
