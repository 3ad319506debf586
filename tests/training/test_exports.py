"""Public names of `winnow.training` are imported when they are first used."""

from __future__ import annotations

import subprocess
import sys

import winnow.training


def test_every_public_name_exists() -> None:
    assert set(winnow.training._MODULES) == set(winnow.training.__all__)
    for name in winnow.training.__all__:
        assert getattr(winnow.training, name) is not None


def test_callbacks_load_no_trainer() -> None:
    script = "import sys, winnow.training.callbacks; print(any(m.startswith('torch') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "False"
