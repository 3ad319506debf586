"""The table of attacks on the security page, and the script that measures it."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def attack() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attack", ROOT / "scripts/attack.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["attack"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_recorded_attacks(attack: ModuleType) -> None:
    recorded = json.loads(attack.RESULT.read_text())
    assert list(recorded["attacks"]) == list(attack.ATTACKS)
    page = attack.PAGE.read_text()
    assert attack.render(recorded["attacks"]) in page
    assert attack.render_cost(recorded["cost"]) in page


def test_costs_are_measured(attack: ModuleType) -> None:
    seconds = attack.cost(vectors=1000, dim=8)
    assert len(seconds) == 7
    assert all(value >= 0 for value in seconds.values())


def test_failures_are_counted(attack: ModuleType) -> None:
    outcome = attack.Outcome("one", "other", note="n")
    outcome.count(True, "fine")
    outcome.count(False, "bad")
    assert (outcome.trials, outcome.failures) == (2, ["bad"])
    row = {**vars(outcome), "commit": "a"}
    assert "\n| one | other (n) | 2 | 1 |\n" in attack.render({"first": row})
    assert "`a`: first; `b`: second" in attack.render({"first": row, "second": {**row, "commit": "b"}})


def test_attacks_of_another_commit_or_scale_are_repeated(
    attack: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attack, "RESULT", tmp_path / "attack.json")
    monkeypatch.setattr(attack, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text("<!-- attack -->\nold\n<!-- /attack -->\n<!-- cost -->\n<!-- /cost -->\n")
    row = {**vars(attack.Outcome("one", "other")), "scale": 1.0}
    attack.record("images", row, {"commit": "a", "command": "c1", "machine": {}})
    attack.record("flips", row, {"commit": "b", "command": "c2", "machine": {}})
    recorded = attack.read_recorded()["attacks"]
    assert [(name, one["commit"], one["command"]) for name, one in recorded.items()] == [
        ("flips", "b", "c2"),
        ("images", "a", "c1"),
    ]
    assert attack.is_recorded("flips", "b", 1.0)
    assert not any(attack.is_recorded(*one) for one in (("flips", "a", 1.0), ("flips", "b", 0.1), ("cost", "b", 1.0)))
    page = (tmp_path / "page.md").read_text()
    assert "old" not in page
    assert attack.render(recorded) in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flips", "configs", "images"])
def test_attacks_run_at_a_small_scale(attack: ModuleType, name: str) -> None:
    with attack.make_site(0) as site:
        outcome = attack.ATTACKS[name](attack.Site(site.folder, random.Random(1)), 0.05)
    assert outcome.trials >= 3
    assert not outcome.failures
