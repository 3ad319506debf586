"""The study of centre regularisation: which runs it plans, and that its text follows the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TINY, MakeFolder
from tests.studies.planned import planned
from winnow.studies import Task, centres, cub_losses
from winnow.studies.centres_report import OURS, Parts, idle, of_crops, of_deltas, of_dims, of_table, settings

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")


@pytest.mark.parametrize("size", [centres.SMALL, centres.FULL], ids=["small", "full"])
def test_every_planned_run_has_the_settings_its_name_says(size: centres.Size, tmp_path: Path) -> None:
    compared, parts = centres.comparison(size)
    for method, config in planned(compared, tmp_path):
        assert (config.regularizer.name == "none") == ("+" not in method.name)
        dim = method.name.partition(", dim ")[2]
        assert config.dim == (int(dim) if dim else size.dim)
        delta = method.name.partition(", delta ")[2]
        assert getattr(config.regularizer, "delta", None) == (float(delta) if delta else None)
        if "nearest" in method.name or "farthest" in method.name:
            assert config.regularizer.toward in method.name
        assert config.image.crop == 256 or "crop 256" not in method.name
        assert config.train.optimizer == "adamw"
    named = [name for part in (parts.table, parts.dims, parts.deltas, parts.crops)
             for inner in part.values() for name in inner.values()]  # fmt: skip
    assert set(named) == {method.name for method in compared.methods}


def test_weights_are_those_of_the_other_study_on_cub(tmp_path: Path) -> None:
    same = {
        "R1 farthest": "R1, farthest", "R1 nearest": "R1, nearest", "R2 farthest": "R2", "UniformFace": "UniformFace",
        "MHE": "MHE",
    }  # fmt: skip
    there = {
        method.name: config.regularizer for method, config in planned(cub_losses.comparison(small=False), tmp_path)
    }
    here = list(planned(centres.comparison(centres.FULL)[0], tmp_path))
    assert set(same) == set(centres.REGULARISERS)
    for regulariser, name in same.items():
        theirs = there[f"Proxy-Anchor + {name}"]
        mine = [
            config.regularizer for method, config in here if method.name.startswith(f"Proxy-Anchor + {regulariser}")
        ]
        assert all(one.model_copy(update={"delta": None}) == theirs.model_copy(update={"delta": None}) for one in mine)
        assert len(mine) == {"R1 farthest": 15, "R1 nearest": 9}.get(regulariser, 1)
        if regulariser != "UniformFace":  # class means have weights of their own
            (beside,) = (config.regularizer for method, config in here if method.name == f"MS + {regulariser}")
            assert beside.weight == centres.MEANS[regulariser]
    assert "; 10 for R1 farthest, 10 for R2 farthest is the best there" in settings(centres.FULL.weights, 0.0)
    assert "800 steps" not in settings(centres.SMALL.weights, 0.0)


TABLE = {"Proxy-Anchor": {"": "a", "R1 farthest": "a1", "MHE": "a2"}, "MS": {"": "b", "R1 farthest": "b1", "MHE": "b2"}}
PARTS = Parts(
    TABLE,
    {OURS: {64: "o64", 128: "o128", 512: "o512"}, "MS": {64: "m64", 128: "m128", 512: "m512"}},
    {"R1 farthest": {0.0: "d0", 0.5: "d5"}},
    {"crop 256": {"a": "a256"}},
)


def test_the_table_is_checked() -> None:
    good = {"a": 50.0, "a1": 52.0, "a2": 49.0, "b": 40.0, "b1": 41.0, "b2": 43.0}
    every, farthest = of_table(good, PARTS, 0.4)
    assert every.endswith("R1 farthest +1.00 (MS), agrees; MHE -1.00 (Proxy-Anchor), does not agree.")
    assert farthest.endswith("in the mean R1 farthest +1.50, MHE +1.00: agrees.")
    every, farthest = of_table({**good, "a1": 45.0}, PARTS, 0.4)
    assert "R1 farthest -5.00 (Proxy-Anchor), does not agree; MHE" in every
    assert farthest.endswith("R1 farthest -2.00, MHE +1.00: does not agree.")
    assert " ".join(of_table(good, PARTS, 1.2)).count("cannot be told from what seeds deviate by") == 3
    assert "At these weights R1 farthest beside Proxy-Anchor overrules" in of_table({**good, "a1": 44.0}, PARTS, 0.4)[2]
    assert "missing" in of_table({"a": 1.0}, PARTS, 0.0)[0]


def test_sizes_are_checked() -> None:
    good = {"o64": 50.0, "o128": 60.0, "o512": 60.5, "m64": 40.0, "m128": 50.0, "m512": 45.0}
    lines = of_dims(good, PARTS, 0.5, [])
    assert [line.rpartition("; ")[2] for line in lines] == ["agrees."] * 3
    lines = of_dims({**good, "o512": 44.0, "m512": 50.0}, PARTS, 0.5, [])
    assert [line.rpartition("; ")[2] for line in lines] == ["does not agree."] * 3
    assert "by at least -6.00;" in lines[0]
    assert lines[2].endswith("0.00 and 16.00 below their best; does not agree.")
    fallen = of_dims(good, PARTS, 6.0, [])[2]
    assert fallen.endswith("5.00 and 0.00 below their best; does not agree."), "seeds would make it fall as far"
    (short,) = of_dims(good, PARTS, 0.5, ["o64"])
    assert "cannot be told" in short
    assert short.endswith("not done learning: o64.")
    assert "missing" in of_dims({"o64": 1.0}, PARTS, 0.5, [])[0]


def test_levels_are_checked() -> None:
    deltas = replace(PARTS, deltas={"R1 farthest": {0.0: "d0", 0.55: "d5"}})
    matters, best = of_deltas({"d0": 48.0, "d5": 50.5}, deltas, 0.5)
    assert matters.endswith("matters: 2.50 points from worst to best; agrees.")
    assert best.endswith("0.55 is, of R1 farthest; agrees.")
    assert all(line.endswith("cannot be told.") for line in of_deltas({"d0": 48.0, "d5": 50.5}, deltas, 3.0))
    matters, best = of_deltas({"d0": 50.9, "d5": 50.5}, deltas, 0.0)
    assert matters.endswith("0.40 points from worst to best; does not agree (one seed).")
    assert best.endswith("0 is, of R1 farthest; does not agree.")
    assert len(of_deltas({"d0": 50.9, "d5": 50.5}, PARTS, 0.0)) == 1, "without that level it cannot be the best"
    assert "missing" in of_deltas({"d0": 1.0}, PARTS, 0.0)[0]
    assert of_crops({"a": 50.0, "a256": 51.0}, PARTS) == ["crop 256: a +1.00 points."]
    assert "missing" in of_crops({"a": 50.0}, PARTS)[0]


def test_levels_that_do_nothing_are_named() -> None:
    def runs(*metrics: float) -> list[dict[str, Any]]:
        return [{"metrics": {"test": {"P@1": 0.5, "MAP@R": each}}} for each in metrics]

    found = {"a": runs(0.1, 0.2), "a1": runs(0.3, 0.4), "d0": runs(0.3, 0.4), "d5": runs(0.1, 0.2)}
    assert idle(found, PARTS) == (
        "With 0.5 R1 farthest is exactly the loss alone: no mean was ever above. "
        "With 0 R1 farthest is exactly R1 without a level: all means always were above."
    )
    assert idle({**found, "d0": runs(0.3, 0.5), "d5": runs(0.1, 0.3)}, PARTS) == "", "the same P@1 may be chance"
    assert idle({name: [] for name in found}, PARTS) == ""


def test_the_study_goes_from_runs_to_text(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {name: words for name, words in centres.REGULARISERS.items() if name.startswith("R1")}
    monkeypatch.setattr(centres, "REGULARISERS", some)
    words = [word for word in TINY if not word.startswith(("pooling", "dim"))]
    words += [f"data={make_folder()}", "backbone.train=frozen", "train.device=cpu", "train.max_steps=2", "pooling=gap"]
    size = replace(centres.SMALL, dim=8, dims=(128,), deltas=(0.99,), words=words)
    findings = centres.run(Task(small=True, runs=tmp_path / "runs"), size)
    assert "missing" not in findings.text
    assert (
        "With 0.99 R1 farthest is exactly the loss alone: no mean was ever above" in findings.text
    )  # of random centres none is that near to all others
    assert len(findings.figure.axes) == 3
    none = centres.run(Task(small=True, runs=tmp_path / "none", only_finished=True), size)
    assert none.text.count("missing") >= 4
