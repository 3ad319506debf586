"""The examples run, and their models beat their baselines."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """Import an example as a module, without running its main block."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_own_loop() -> None:
    """The trained head finds more images of unseen classes than averaged frozen features."""
    baseline, trained = load("own_loop").main(train_classes=60, test_classes=30, steps=80)
    assert trained["P@1"] > baseline["P@1"]
    assert trained["MAP@R"] > 1.3 * baseline["MAP@R"]


def check_timm_classifier() -> None:
    """The loss of a timm classifier with GSP falls."""
    pytest.importorskip("pytorch_metric_learning")
    example = load("timm_classifier")
    history = example.train(example.make_model(), steps=12)
    assert sum(history[-3:]) < sum(history[:3])


CHECKS = {"own_loop": check_own_loop, "timm_classifier": check_timm_classifier}


def test_all_examples_are_checked() -> None:
    assert set(CHECKS) == {path.stem for path in EXAMPLES.glob("*.py")}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CHECKS))
def test_example_runs(name: str) -> None:
    CHECKS[name]()
