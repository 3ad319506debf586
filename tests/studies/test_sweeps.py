"""Sweeps of GSP's settings: which runs they plan, that they go from settings to text, and that texts follow numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from typer.testing import CliRunner

from tests.conftest import TINY, MakeFolder
from tests.studies.planned import planned
from winnow.cli.main import app
from winnow.errors import ConfigError
from winnow.studies import STUDIES, Task, components, learned, m_eps, mu, prototypes, screening, sweeps
from winnow.studies.base import takes_settings
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import verdict

pytestmark = pytest.mark.filterwarnings("ignore:backbone resnet20 starts from random weights")
SWEEPS = {"mu": mu, "m-eps": m_eps, "components": components, "screening": screening, "prototypes": prototypes,
          "learned": learned}  # fmt: skip


@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
@pytest.mark.parametrize("name", SWEEPS)
def test_every_planned_run_has_the_settings_its_name_says(name: str, small: bool, tmp_path: Path) -> None:
    compared = SWEEPS[name].comparison(small)
    for method, config in planned(compared, tmp_path):
        pooling = config.pooling
        assert (pooling.name == "gap") == method.name.startswith("GAP")
        assert (config.loss.name == "proxy_nca") == ("PNCA" in method.name)
        for part in method.name.replace(":", ",").split(", "):
            key, _, value = part.partition(" ")
            known = {"m": getattr(pooling, "num_prototypes", None), "mu": getattr(pooling, "mu", None),
                     "eps": getattr(pooling, "eps", None),
                     "lambda": config.zsr.weight}  # fmt: skip
            if key in known and value not in ("learned", ""):
                assert known[key] == float(value)
            assert getattr(pooling, "learn_mu", False) == ("mu learned" in method.name or "both learned" in method.name)
    assert (compared.file is None) == small


def test_settings_go_before_those_of_a_study_and_are_told(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder()

    def tiny(methods, small, **_):
        base = [word for word in TINY if not word.startswith("pooling")]
        return Comparison(methods[:2], (0,), [f"data={folder}", *base, "train.device=cpu", "train.max_steps=2"])

    monkeypatch.setattr(SWEEPS["mu"], "compare", tiny)
    asked = ["mu", "-o", str(tmp_path), "train.max_steps=3", "train.lr=0.001"]
    said = CliRunner().invoke(app, ["study", *asked, "--methods", "GAP"])
    assert said.exit_code == 0, said.output
    command = f"`winnow study mu train.max_steps=3 train.lr=0.001 --small -o {tmp_path}` trains the others"
    assert command in " ".join(said.output.split())
    assert CliRunner().invoke(app, ["study", *asked]).exit_code == 0
    written = json.loads((tmp_path / "mu.json").read_text())
    assert "Settings other than the study's: `train.max_steps=3`, `train.lr=0.001`." in written["text"]
    assert written["settings"]["asked"] == ["train.max_steps=3", "train.lr=0.001"]
    assert {run["steps"] for run in written["runs"]} == {3}
    assert {run["config"]["train"]["lr"] for run in written["runs"]} == {0.001}
    noted = CliRunner().invoke(app, ["study", *asked, "--only-finished", "--note", "Half their size."])
    assert noted.exit_code == 0, noted.output
    assert json.loads((tmp_path / "mu.json").read_text())["text"] == f"{written['text']}\n\nHalf their size."
    with pytest.raises(ConfigError, match=r"made with another train\.max_steps"):
        CliRunner().invoke(app, ["study", "mu", "-o", str(tmp_path)], catch_exceptions=False)


def test_settings_are_refused_where_there_are_no_runs_to_take_them() -> None:
    refused = {
        ("summary", "train.lr=1"): "summary has no runs that take train.lr=1",
        ("all", "train.lr=1"): "one study",
        ("all", "--note", "Half their size."): "one study",
        ("tokens", "--seeds", "0"): "has no runs that take --seeds",
        ("mu", "--seeds", "a"): "numbers such as",
    }
    for words, told in refused.items():
        with pytest.raises(ConfigError, match=told):
            CliRunner().invoke(app, ["study", *words], catch_exceptions=False)
    trained = {name for name, study in STUDIES.items() if takes_settings(study)}
    assert trained >= {*SWEEPS, "zero-shot", "collage", "ccp-pool", "centres", "average-pooling"}
    assert not trained & {"summary", "toy-map", "tokens", "iterations"}


@pytest.mark.parametrize(
    ("word", "told"),
    [("seed=7", r"seed=7: .* --seeds"), ("train.run_test=false", r"train\.run_test=false: .* test classes")],
)
def test_settings_that_a_comparison_cannot_do_with_are_refused(word: str, told: str, tmp_path: Path) -> None:
    compared = Comparison([Method("GAP", ["pooling=gap"])], (0, 1), ["data=emoji"])
    with pytest.raises(ConfigError, match=told):
        compared.train(Task(True, runs=tmp_path, words=[word], only_finished=True))


def test_some_methods_and_seeds_are_trained_now_and_the_others_listed(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "train.max_steps=2"]
    compared = Comparison([Method("m 4, C2", []), Method("m 8, C2", []), Method("GAP", ["pooling=gap"])], (0, 1), words)
    task = Task(True, runs=tmp_path, methods=["m 8*", "GAP"], seeds=[1])
    found = compared.train(task)
    assert {name: [run["config"]["seed"] for run in runs] for name, runs in found.items()} == {
        "m 4, C2": [], "m 8, C2": [1], "GAP": [1],
    }  # fmt: skip
    assert [row["missing"] for row in compared.rows(found)] == ["seeds 0, 1", "seed 0", "seed 0"]
    with pytest.raises(
        ConfigError, match=r"no method is called so \(did you mean 'm 8, C2'\?\); there are: m 4, C2; m 8"
    ):
        compared.train(replace(task, methods=["m 9, C2"]))
    with pytest.raises(ConfigError, match="has the seeds 0, 1"):
        compared.train(replace(task, seeds=[2]))


@pytest.mark.parametrize("name", ["mu", "m-eps", "components", "prototypes", "learned"])
def test_a_sweep_goes_from_runs_to_text(
    name: str, make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder()

    def tiny(methods, small, **_):
        base = [word for word in TINY if not word.startswith("pooling")]
        words = [f"data={folder}", *base, "train.device=cpu", "train.max_steps=2", "train.eval_steps=1"]
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


CHANCE = verdict(0.0, 1.0)
ONE_AGREES, ONE_DOES_NOT = verdict(1.0, 0.0), verdict(-1.0, 0.0)


def outcomes(text: str) -> list[str]:
    """Return what a list of claims comes to, one for each."""
    items = text.split("\n")
    assert all(item.startswith("- ") for item in items)
    return [item.rpartition(": ")[2] for item in items]


def test_mu_is_checked_against_both_claims() -> None:
    good, bad = {0.1: 30.0, 0.3: 29.5, 0.9: 12.0}, {0.1: 12.0, 0.3: 20.0, 0.9: 30.0}
    assert outcomes(mu.told(good, 10.0, 0.5)) == ["agrees."] * 2
    assert outcomes(mu.told(bad, 10.0, 0.5)) == ["does not agree."] * 2
    assert outcomes(mu.told(bad, 10.0, 0.0)) == [f"{ONE_DOES_NOT}."] * 2
    # Low values differ by 0.5 where a quarter of the gain is 5, and are 17.75 ahead of high ones.
    text = mu.told(good, 10.0, 6.0)
    assert outcomes(text) == [f"{CHANCE}.", "agrees."]
    assert "within 0.50 points where 5.00, a quarter of the gain" in text
    assert "29.75 in the mean up to mu = 0.3, 12.00 from 0.7 on, 10.00 with GAP" in text
    assert outcomes(mu.told(good, 10.0, 18.0)) == [f"{CHANCE}."] * 2


def test_mu_without_a_gain_has_none_to_lose() -> None:
    flat = {0.1: 19.4, 0.3: 19.6, 0.5: 20.1, 0.9: 19.4}
    text = mu.told(flat, 20.0, 0.0)
    assert "ahead of average pooling: MAP@R is 19.40 to 19.60 up to mu = 0.3, 20.00 with GAP" in text
    assert (
        "19.50 in the mean up to mu = 0.3, 19.40 from 0.7 on, 20.00 with GAP; the best is mu = 0.5 with 20.10" in text
    )
    no_gain = "cannot be told, as there is no gain that could drop."
    assert outcomes(text) == [f"{ONE_DOES_NOT}.", no_gain]
    assert outcomes(mu.told(flat, 20.0, 0.6)) == [f"{CHANCE}.", "cannot be told, as the gain cannot be told either."]
    assert outcomes(mu.told(flat, 20.0, 0.4)) == ["does not agree.", no_gain]


def test_components_are_checked() -> None:
    def told(deviation: float, *scores: float) -> list[str]:
        return outcomes(components.told(dict(zip(components.THESIS, scores, strict=True)), deviation))

    agrees, does_not, chance = "agrees.", "does not agree.", f"{CHANCE}."
    assert told(0.5, 1.0, 2.0, 3.0, 4.0) == [agrees] * 4
    assert told(0.6, 2.0, 1.0, 2.5, 4.0) == [does_not, chance, agrees, agrees]
    assert told(0.4, 2.0, 3.0, 4.0, 3.5)[2] == does_not
    assert told(0.4, 5.0, 3.0, 4.0, 4.8)[2] == chance, "the baseline is one of the others"
    assert told(0.0, 1.0, 2.0, 1.5, 2.1) == [f"{ONE_AGREES}."] * 3 + [f"{ONE_DOES_NOT}."], "ZSR adds less than 0.5"
    assert "+0.67 on CUB with 128 numbers" in components.told(dict.fromkeys(components.THESIS, 1.0), 0.0)
    assert "missing" in components.told({"GAP": 1.0}, 0.0)


def test_the_grid_is_checked_at_the_documents_best() -> None:
    grid = {(16, 5.0): 1.0, (64, 5.0): 3.0, (64, 20.0): 2.0}
    text = m_eps.told("C2", grid, 0.5, 0.9)
    assert "they have 3.00, of all others m = 64 and eps = 20 have most, 2.00, and GAP has 0.50: agrees." in text
    assert "1.50 points from m to m" in text
    assert f"and GAP has 0.50: {CHANCE}." in m_eps.told("C2", grid, 0.5, 1.1)
    text = m_eps.told("C2", {**grid, (16, 5.0): 4.0}, 0.5, 0.9)
    assert "m = 16 and eps = 5 have most, 4.00, and GAP has 0.50: does not agree." in text
    assert "missing" in m_eps.told("PNCA", grid, 0.5, 0.0), "their best with PNCA, (64, 0.5), is not in"


def test_prototypes_are_checked() -> None:
    def told(by_m: dict[float, float], deviation: float) -> list[str]:
        return outcomes(prototypes.told("C2", by_m, 10.0, deviation))

    good: dict[float, float] = {8: 5.0, 64: 20.0, 128: 20.5}
    assert told(good, 0.5) == ["agrees.", "agrees; m = 8 has 5.00."]
    assert told({64: 5.0, 128: 20.0}, 0.5) == ["does not agree.", "does not agree; m = 64 has 5.00."]
    # Many are at least 10 ahead of GAP, and differ by 0.5 where a quarter of the gain is 2.625.
    assert told(good, 3.0) == ["agrees.", f"{CHANCE}; m = 8 has 5.00."]
    assert told(good, 11.0) == [f"{CHANCE}.", f"{CHANCE}; m = 8 has 5.00."]


@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("small", [True, False], ids=["small", "full"])
def test_a_sweep_says_how_it_was_made_with_the_numbers_that_were_asked_for(
    name: str, small: bool, tmp_path: Path
) -> None:
    words = ["train.max_steps=20"] if small else ["train.patience=7", "backbone.train=frozen"]
    text = STUDIES[name](Task(small, runs=tmp_path, words=words, only_finished=True)).text
    made = next(part for part in text.split("\n\n") if part.startswith("On the "))
    assert ("frozen backbone, 20 steps" in made) == small
    assert ("which is not trained" in made) == (not small)
    assert ("the documents" in made.partition("BN-Inception")[2]) == (not small and name != "learned")
    tuned = "training ends after 7 validations without a gain, and MAP@R is of the test classes; the documents tune"
    assert (tuned in made) == (not small and name not in ("components", "learned"))
    theirs = {"mu": "eps 20 (documents: 5)", "m-eps": "mu 0.05 (documents: 0.3)",
              "prototypes": "mu 0.05 and eps 20 (documents: 0.3, and 5 with C2, 0.5 with PNCA)",
              "components": "mu 0.05 and eps 20 (documents: 0.3 and 5)"}  # fmt: skip
    assert (theirs.get(name, "On the") in made) == (small or name not in theirs)


def test_a_loss_is_judged_by_the_seeds_of_its_own_methods() -> None:
    def runs(*values: float) -> list[dict[str, object]]:
        return [{"metrics": {"test": {"MAP@R": value / 100}}} for value in values]

    compared = Comparison([Method("a", [], "C2"), Method("b", [], "PNCA"), Method("c", [], "PNCA")], (0, 1))
    found = {"a": runs(20.0, 24.0), "b": runs(1.0, 1.2), "c": runs(2.0, 2.0)}
    assert sweeps.deviations(compared, found) == pytest.approx({"C2": 8**0.5, "PNCA": 0.02**0.5})


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
    assert screening.told({}, theirs, {"C2": 0.0}) == "- With C2 runs are missing."
    assert [row["MAP@R"] for row in screening.effect_rows({}, theirs)] == [None] * 4
    assert len(screening.draw({}, theirs).axes) == 1


def test_the_screening_is_checked() -> None:
    theirs = {"C2": {"m": 0.1, "mu": -1.0, "eps": -2.0, "lambda": -1.0}}

    def told(deviation: float, **effects: float) -> list[str]:
        """Return what becomes of lambda, mu, eps, and eps before all."""
        own = {"m": 0.1, "mu": -1.0, "eps": -2.0, "lambda": -1.5} | effects
        return outcomes(screening.told({"C2": own}, theirs, {"C2": deviation}))

    agrees, does_not, chance = "agrees.", "does not agree.", f"{CHANCE}."
    assert told(0.4) == [agrees] * 4
    assert told(0.4, mu=1.0) == [agrees, does_not, agrees, agrees]
    assert told(0.4, m=3.0) == [agrees] * 3 + [does_not]
    assert told(0.6) == [agrees] * 3 + [chance]
    assert told(2.0) == [chance] * 4
    assert told(0.4, eps=2.0) == [agrees, agrees, does_not, agrees]
    rows = screening.effect_rows({"C2": {"m": 0.123, "mu": -1.0, "eps": -2.0, "lambda": -1.5}}, theirs)
    assert rows[0] == {"method": "effect of m, C2", "MAP@R": 0.12, "thesis, CUB validation": 0.1}
    # Where their own table has it the other way, that is said as well.
    theirs["C2"]["mu"] = 0.1
    text = screening.told({"C2": theirs["C2"]}, theirs, {"C2": 0.0})
    assert text.count("(thesis +0.10; their own table says the opposite)") == 1


def test_learning_is_judged_by_the_best_of_three_gains() -> None:
    start = "mu 0.3, eps 5"
    rows = [{"method": f"{start}: {name}", "mu at the end": 0.1, "eps at the end": 9.0} for name in learned.LEARNED]

    def told(deviation: float, *scores: float) -> str:
        names = [f"{start}: {name}" for name in learned.LEARNED]
        return learned.told(False, dict(zip(names, scores, strict=True)), rows, deviation)

    text = told(0.0, 10.0, 9.0, 10.4, 11.0)
    assert "mu learned -1.00, eps learned +0.40, both learned +1.00 points" in text
    assert "By the best of the three gains, in one seed, learning helps." in text
    assert "A gain counts from 0.5 points on; the best of three" in text
    assert "By the best of the three gains learning hardly matters." in told(1.5, 10.0, 9.0, 10.4, 11.0)
    assert "learning harms." in told(0.0, 10.0, 9.0, 9.4, 8.0)
    assert "missing" in learned.told(False, {}, rows)
    rows = [row | {"mu at the end": None, "eps at the end": None} for row in rows]  # taken in without their weights
    assert "both learned +1.00 points of MAP@R. By the best" in told(0.0, 10.0, 9.0, 10.4, 11.0)


def test_learned_settings_are_read_from_weights() -> None:
    state = {"head.pooling.mu_logit": torch.tensor(0.0), "head.pooling.log_eps": torch.tensor(math.log(7.0))}
    assert learned.ended(state, 0.3, 5.0) == pytest.approx({"mu": 0.5, "eps": 7.0})
    assert learned.ended({}, 0.3, 5.0) == {"mu": 0.3, "eps": 5.0}


def test_a_grid_with_gaps_is_drawn() -> None:
    figure = sweeps.grids({"C2": {(1, 1): 1.0, (2, 2): 2.0}}, rows="m", columns="eps", title="t")
    assert [text.get_text() for text in figure.axes[0].texts] == ["1.0", "2.0"]
