"""Run Triton kernels on a CPU, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run_interpreted(script: str) -> None:
    """Run Python code in a separate process, because Triton chooses the interpreter on import.

    If the code fails and the interpreter cannot run even a counting loop, the test is skipped. The interpreter of
    Triton 3.6 fails in this way with NumPy 2.5.
    """
    pytest.importorskip("triton")
    failed = _run(script)
    if failed is None:
        return
    broken = _run("from tests.kernels.interpreted_count import main; main()")
    if broken is not None:
        pytest.skip(
            f"Triton's interpreter cannot run a counting loop with this NumPy: {broken.strip().splitlines()[-1]}"
        )
    raise AssertionError(failed)


def _run(script: str) -> str | None:
    """Run code with the interpreter; return its stderr if it failed, else None."""
    path = os.pathsep.join(["src", ".", os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    return None if run.returncode == 0 else run.stderr
