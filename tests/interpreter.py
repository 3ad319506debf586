"""Triton kernels on a CPU, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run_interpreted(script: str) -> None:
    """Run Python code in a process of its own, because Triton decides on import whether it interprets.

    Skipped where it fails and the interpreter cannot so much as count: that of Triton 3.6 cannot with NumPy 2.5.
    """
    pytest.importorskip("triton")
    failed = _run(script)
    if failed is None:
        return
    broken = _run("from tests.interpreted_count import main; main()")
    if broken is not None:
        pytest.skip(f"this Triton's interpreter cannot count with this NumPy: {broken.strip().splitlines()[-1]}")
    raise AssertionError(failed)


def _run(script: str) -> str | None:
    """Run code with the interpreter; return what it wrote to stderr if it failed."""
    path = os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    return None if run.returncode == 0 else run.stderr
