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
    assert attack.render(list(recorded["attacks"].values())) in page
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
    assert attack.render([vars(outcome)]).endswith("| one | other (n) | 2 | 1 |")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flips", "configs", "images"])
def test_attacks_run_at_a_small_scale(attack: ModuleType, name: str) -> None:
    with attack.make_site(0) as site:
        outcome = attack.ATTACKS[name](attack.Site(site.folder, random.Random(1)), 0.05)
    assert outcome.trials >= 3
    assert not outcome.failures
