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


def test_settings_go_before_those_of_a_study_and_are_told(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder()

    def tiny(methods, small, **_):
        base = [word for word in TINY if not word.startswith("pooling")]
        return Comparison(methods[:2], (0,), [f"data={folder}", *base, "train.device=cpu", "train.steps=2"])

    monkeypatch.setattr(SWEEPS["mu"], "compare", tiny)
    asked = ["mu", "-o", str(tmp_path), "train.steps=3", "train.lr=0.001"]
    said = CliRunner().invoke(app, ["study", *asked, "--methods", "GAP"])
    assert said.exit_code == 0, said.output
    command = f"`winnow study mu train.steps=3 train.lr=0.001 --small -o {tmp_path}` trains the others"
    assert command in " ".join(said.output.split())
    assert CliRunner().invoke(app, ["study", *asked]).exit_code == 0
    written = json.loads((tmp_path / "mu.json").read_text())
    assert "Settings other than the study's: `train.steps=3`, `train.lr=0.001`." in written["text"]
    assert written["settings"]["asked"] == ["train.steps=3", "train.lr=0.001"]
    assert {run["steps"] for run in written["runs"]} == {3}
    assert {run["config"]["train"]["lr"] for run in written["runs"]} == {0.001}
    noted = CliRunner().invoke(app, ["study", *asked, "--only-finished", "--note", "Half their size."])
    assert noted.exit_code == 0, noted.output
    assert json.loads((tmp_path / "mu.json").read_text())["text"] == f"{written['text']}\n\nHalf their size."
    with pytest.raises(ConfigError, match=r"made with another train\.steps"):
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
    ("word", "told"), [("seed=7", r"seed=7: .* --seeds"), ("train.test=false", r"train\.test=false: .* test classes")]
)
def test_settings_that_a_comparison_cannot_do_with_are_refused(word: str, told: str, tmp_path: Path) -> None:
    compared = Comparison([Method("GAP", ["pooling=gap"])], (0, 1), ["data=emoji"])
    with pytest.raises(ConfigError, match=told):
        compared.train(Task(True, runs=tmp_path, words=[word], only_finished=True))


def test_some_methods_and_seeds_are_trained_now_and_the_others_listed(make_folder: MakeFolder, tmp_path: Path) -> None:
    words = [f"data={make_folder()}", *TINY, "train.device=cpu", "train.steps=2"]
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


CHANCE = "cannot be told from what seeds deviate by"


def test_mu_is_checked_against_both_claims() -> None:
    good, bad = {0.1: 30.0, 0.3: 29.5, 0.9: 12.0}, {0.1: 12.0, 0.3: 20.0, 0.9: 30.0}
    assert mu.told(good, 10.0, 0.5).count("which agrees") == 2
    assert mu.told(bad, 10.0, 0.5).count("which does not agree") == 2
    assert mu.told(bad, 10.0, 0.0).count("which does not agree (one seed)") == 2
    # Low values differ by 0.5 where a quarter of the gain is 5, and are 17.75 ahead of high ones.
    text = mu.told(good, 10.0, 6.0)
    assert text.count(CHANCE) == 1
    assert f"within 0.50 points, which {CHANCE}" in text
    assert mu.told(good, 10.0, 18.0).count(CHANCE) == 2


def test_mu_without_a_gain_has_none_to_lose() -> None:
    flat = {0.1: 19.4, 0.3: 19.6, 0.5: 20.1, 0.9: 19.4}
    text = mu.told(flat, 20.0, 0.0)
    assert "+0.10 from GAP's 20.00" in text
    assert "are 19.40 to 19.60, 19.50 in the mean, and from 0.7 on 19.40" in text
    assert "ahead of average pooling does not agree (one seed), so that there is no gain" in text
    assert f"ahead of average pooling {CHANCE}, so that neither can a drop" in mu.told(flat, 20.0, 0.6)
    assert "ahead of average pooling does not agree, so" in mu.told(flat, 20.0, 0.4)


def test_components_are_checked() -> None:
    names = list(components.THESIS)
    text = components.told(dict(zip(names, (1.0, 2.0, 3.0, 4.0), strict=True)), 0.5)
    assert "The gain of GSP agrees, of ZSR alone (mu = 1) agrees; that both together" in text
    assert text.endswith("are ahead of all others agrees (+1.00).")
    text = components.told(dict(zip(names, (2.0, 1.0, 2.5, 4.0), strict=True)), 0.6)
    assert f"The gain of GSP does not agree, of ZSR alone (mu = 1) {CHANCE}; that both" in text
    assert text.endswith("are ahead of all others agrees (+1.50).")
    text = components.told(dict(zip(names, (2.0, 3.0, 4.0, 3.5), strict=True)), 0.4)
    assert text.endswith("are ahead of all others does not agree (-0.50).")
    text = components.told(dict(zip(names, (5.0, 3.0, 4.0, 4.8), strict=True)), 0.4)
    assert text.endswith(f"are ahead of all others {CHANCE} (-0.20)."), "the baseline is one of the others"


def test_the_grid_is_checked_at_the_documents_best() -> None:
    grid = {(16, 5.0): 1.0, (64, 5.0): 3.0, (64, 20.0): 2.0}
    text = m_eps.told("C2", grid, 0.5, 0.9)
    assert "they have 3.00, and of all others m = 64 and eps = 20 have most, 2.00, which agrees; GAP has 0.50." in text
    assert "1.50 points from m to m" in text
    assert f"2.00, which {CHANCE}" in m_eps.told("C2", grid, 0.5, 1.1)
    text = m_eps.told("C2", {**grid, (16, 5.0): 4.0}, 0.5, 0.9)
    assert "m = 16 and eps = 5 have most, 4.00, which does not agree;" in text
    assert "missing" in m_eps.told("PNCA", grid, 0.5, 0.0), "their best with PNCA, (64, 0.5), is not in"


def test_prototypes_are_checked() -> None:
    good = {8: 5.0, 64: 20.0, 128: 20.5}
    text = prototypes.told("C2", good, 10.0, 0.5)
    assert text.count("which agrees") == 2
    assert prototypes.told("C2", {64: 5.0, 128: 20.0}, 10.0, 0.5).count("which does not agree") == 2
    # Many are at least 10 ahead of GAP, and differ by 0.5 where a quarter of the gain is 2.625.
    assert f"GAP has 10.00, which agrees, and differ by 0.50 points, which {CHANCE}" in prototypes.told(
        "C2", good, 10.0, 3.0
    )
    assert prototypes.told("C2", good, 10.0, 11.0).count(f"which {CHANCE}") == 2


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
    assert "missing" in screening.told({}, theirs, {"C2": 0.0})[0]
    assert len(screening.draw({}, theirs).axes) == 1


def test_the_screening_is_checked() -> None:
    theirs = {"C2": {"m": 0.1, "mu": -1.0, "eps": -2.0, "lambda": -1.0}}

    def told(deviation: float, **effects: float) -> str:
        own = {"m": 0.1, "mu": -1.0, "eps": -2.0, "lambda": -1.5} | effects
        return screening.told({"C2": own}, theirs, {"C2": deviation})[0].partition("lambda -1.50. ")[2]

    good = (
        "That a lower lambda is better agrees, that a lower mu is agrees, and that eps has the most effect agrees; "
        "that a lower eps is better, as in their table, agrees."
    )
    assert told(0.4) == good
    assert told(0.4, mu=1.0) == good.replace("mu is agrees", "mu is does not agree")
    assert told(0.4, m=3.0) == good.replace("effect agrees", "effect does not agree")
    assert told(0.6) == good.replace("effect agrees", f"effect {CHANCE}")
    assert told(2.0).count(CHANCE) == 4
    assert told(0.4, eps=2.0) == good.replace("table, agrees", "table, does not agree")
    # Where their own table has it the other way, that is said as well.
    theirs["C2"]["mu"] = 0.1
    assert told(0.4).endswith("agrees. (Of mu their own table says the opposite with C2.)")


def test_learned_settings_are_read_from_weights() -> None:
    state = {"head.pooling.mu_logit": torch.tensor(0.0), "head.pooling.log_eps": torch.tensor(math.log(7.0))}
    assert learned.ended(state, 0.3, 5.0) == pytest.approx({"mu": 0.5, "eps": 7.0})
    assert learned.ended({}, 0.3, 5.0) == {"mu": 0.3, "eps": 5.0}


def test_a_grid_with_gaps_is_drawn() -> None:
    figure = sweeps.grids({"C2": {(1, 1): 1.0, (2, 2): 2.0}}, rows="m", columns="eps", title="t")
    assert [text.get_text() for text in figure.axes[0].texts] == ["1.0", "2.0"]
