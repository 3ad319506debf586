"""Where a result comes from: command, commit, machine and versions."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import winnow

_PACKAGES = ("torch", "torchvision", "timm", "lightning-fabric", "numpy", "pillow")


def provenance() -> dict[str, Any]:
    """Return what a reader needs to know to make a result again."""
    return {
        "command": shlex.join(["winnow", *sys.argv[1:]]),
        "commit": _commit(),
        "winnow": winnow.__version__,
        "machine": {
            "python": platform.python_version(),
            "system": platform.system(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        },
        "versions": {name: found for name in _PACKAGES if (found := version_of(name)) is not None},
    }


def _commit() -> str | None:
    """Return the commit of the source tree winnow runs from, marked where it has changes; None if installed.

    `$WINNOW_COMMIT` goes before: a tree copied to a cluster node has no history, or that of something else.
    """
    return os.environ.get("WINNOW_COMMIT") or _tree_commit(Path(winnow.__file__).parent)


@cache
def _tree_commit(source: Path) -> str | None:
    """Ask git, once: what runs is what was imported, whatever is committed while it runs."""
    try:
        # Installed inside another repository, winnow is not tracked by it.
        tracked = ["git", "ls-files", "--error-unmatch", "__init__.py"]
        subprocess.run(tracked, cwd=source, capture_output=True, timeout=10, check=True)
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=source, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
