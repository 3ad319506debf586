"""Sweeps of GSP's settings: which runs they plan, that they go from settings to text, and that texts follow numbers."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.conftest import TINY, MakeFolder
from tests.studies.planned import planned
from winnow.studies import STUDIES, Task, components, learned, m_eps, mu, prototypes, screening, sweeps
from winnow.studies.methods import Comparison

pytestmark = pytest.mark.filterwarnings("ignore:the backbone resnet20 starts from random weights")
SWEEPS = {"mu": mu, "m-eps": m_eps, "components": components, "screening": screening, "prototypes": prototypes,
          "learned": learned}  # fmt: skip


@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
@pytest.mark.parametrize("name", SWEEPS)
def test_every_planned_run_has_the_settings_its_name_says(name: str, small: bool, tmp_path: Path) -> None:
    compared = SWEEPS[name].comparison(small)
    for method, config in planned(compared, tmp_path):
        pooling = config.pooling
        assert (pooling["name"] == "gap") == method.name.startswith("GAP")
        assert (config.loss["name"] == "proxy_nca") == ("PNCA" in method.name)
        for part in method.name.replace(":", ",").split(", "):
            key, _, value = part.partition(" ")
            known = {"m": pooling.get("prototypes"), "mu": pooling.get("mu"), "eps": pooling.get("eps"),
                     "lambda": config.zsr.weight}  # fmt: skip
            if key in known and value not in ("learned", ""):
                assert known[key] == float(value)
            assert pooling.get("learn_mu", False) == ("mu learned" in method.name or "both learned" in method.name)
    assert (compared.file is None) == small


@pytest.mark.parametrize("name", ["mu", "m-eps", "components", "prototypes", "learned"])
def test_a_sweep_goes_from_runs_to_text(
    name: str, make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder()

    def tiny(methods, small, **_):
        base = [word for word in TINY if not word.startswith("pooling")]
        words = [f"data={folder}", *base, "train.device=cpu", "train.steps=2", "train.eval_every=1"]
        return Comparison(methods, (0,), words)

    module: ModuleType = SWEEPS[name]
    monkeypatch.setattr(module, "compare", tiny)
    if name in ("mu", "prototypes"):
        monkeypatch.setattr(module, "SMALL", (0.3, 0.9) if name == "mu" else (4, 64))
    if name == "m-eps":
        monkeypatch.setattr(module, "SMALL", ((64,), (0.5, 5.0)))
    if name == "learned":
        monkeypatch.setattr(module, "STARTS", {True: ((0.3, 5.0),)})
    findings = STUDIES[name](Task(small=True, runs=tmp_path / "runs"))
    assert "missing" not in findings.text
    assert all(row["runs"] == 1 for row in findings.rows)
    assert findings.figure.axes
    if name == "learned":
        ends = {row["method"].partition(": ")[2]: row for row in findings.rows}
        assert ends["fixed"]["mu at the end"] == 0.3
        assert ends["mu learned"]["eps at the end"] == 5
        assert "learning" in findings.text
    none = STUDIES[name](Task(small=True, runs=tmp_path / "none", only_finished=True))
    assert f"`winnow study {name} --small` trains the others" in none.text
    assert "missing" in none.text


def test_mu_is_checked_against_both_claims() -> None:
    text = mu.told({0.1: 30.0, 0.3: 29.5, 0.9: 12.0}, 10.0)
    assert text.count("which agrees") == 2
    text = mu.told({0.1: 12.0, 0.3: 20.0, 0.9: 30.0}, 10.0)
    assert text.count("which does not agree") == 2


def test_components_are_checked() -> None:
    names = list(components.THESIS)
    text = components.told(dict(zip(names, (1.0, 2.0, 3.0, 4.0), strict=True)), 0.5)
    assert "does not" not in text
    assert "less than seeds deviate" not in text
    text = components.told(dict(zip(names, (2.0, 1.0, 3.0, 2.5), strict=True)), 0.6)
    assert text.endswith("though it leads GSP + ZSR by less than seeds deviate (0.60).")
    assert "each improves does not agree" in text
    assert "best is ZSR alone (mu = 1), which does not agree" in text


def test_the_grid_names_its_best() -> None:
    text = m_eps.told("C2", {(16, 5.0): 1.0, (64, 5.0): 3.0, (64, 20.0): 2.0}, 0.5)
    assert "m = 64 and eps = 5 are, with 3.00 where GAP has 0.50, which agrees." in text
    assert "1.50 points from m to m" in text
    assert "one of the two" in m_eps.told("PNCA", {(64, 5.0): 3.0, (16, 0.5): 2.0}, 0.5)


def test_prototypes_are_checked() -> None:
    assert "does not" not in prototypes.told("C2", {8: 5.0, 64: 20.0, 128: 20.5}, 10.0)
    assert prototypes.told("C2", {64: 5.0, 128: 20.0}, 10.0).count("does not agree") == 2


def test_main_effects_are_those_of_the_design() -> None:
    # A response that is linear in the levels has exactly its coefficients as effects.
    results = {setting: 2 * (setting[0] == 128) - 3 * (setting[2] == 20) + 0.5 * (setting[3] == 0.5)
               for setting in screening.THESIS}  # fmt: skip
    assert screening.main_effects(results) == pytest.approx({"m": 2, "mu": 0, "eps": -3, "lambda": 0.5})
    for m, share, eps, weight in screening.THESIS:  # the design: lambda's level is the product of the others'
        signs = [1 if high else -1 for high in (m == 128, share == 0.7, eps == 20, weight == 0.5)]
        assert math.prod(signs) == 1
    theirs = {"C2": screening.main_effects({setting: each["C2"] for setting, each in screening.THESIS.items()})}
    assert theirs["C2"]["eps"] == pytest.approx(-2.785)
    assert "4 of 4" in screening.told(theirs, theirs)[0]
    assert "which agrees." in screening.told({"C2": {"m": 0.1, "mu": -1.0, "eps": -2.0, "lambda": -1.0}}, theirs)[0]
    assert "does not agree" in screening.told({"C2": {"m": 9.0, "mu": 1.0, "eps": 2.0, "lambda": 1.0}}, theirs)[0]
    assert "missing" in screening.told({}, theirs)[0]
    assert len(screening.draw({}, theirs).axes) == 1


def test_learned_settings_are_read_from_weights() -> None:
    state = {"head.pooling.mu_logit": torch.tensor(0.0), "head.pooling.log_eps": torch.tensor(math.log(7.0))}
    assert learned.ended(state, 0.3, 5.0) == pytest.approx({"mu": 0.5, "eps": 7.0})
    assert learned.ended({}, 0.3, 5.0) == {"mu": 0.3, "eps": 5.0}


def test_a_grid_with_gaps_is_drawn() -> None:
    figure = sweeps.grids({"C2": {(1, 1): 1.0, (2, 2): 2.0}}, rows="m", columns="eps", title="t")
    assert [text.get_text() for text in figure.axes[0].texts] == ["1.0", "2.0"]
