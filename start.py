"""Set up an environment and run one task in it: `python3 start.py demo` or `python3 start.py test`.

The first call creates the virtual environment `.venv` with the pinned versions of `constraints.txt`. Requires Python
3.11 or newer, nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
BIN = ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin")
GIGABYTES = 5  # disk space that a set-up needs at most

USER = "serve,optuna"  # extras of all commands in the documentation, except Ray clusters and other file formats

# Extras and commands of each task; further arguments are passed to the last command, of `install` they are extras.
TASKS: dict[str, tuple[str, list[list[str]]]] = {
    "demo": (USER, [["winnow", "demo"]]),
    "run": (USER, [["winnow"]]),
    "install": (USER, [["winnow", "--version"]]),
    "test": (
        "test",
        [
            ["ruff", "check", "."],
            ["ruff", "format", "--check", "."],
            ["mypy"],
            ["lint-imports"],
            ["mkdocs", "build", "--strict", "--site-dir", str(ROOT / "site")],
            ["pytest", "-n", "auto", "--dist", "worksteal"],
        ],
    ),
    "docs": ("docs", [["mkdocs", "serve"]]),
}


def install(extras: str) -> None:
    """Create the environment and install winnow in it, unless an earlier call did so with the same files."""
    files = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    key = hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()
    stamp = ENVIRONMENT / f"installed-{extras or 'core'}"
    if stamp.is_file() and stamp.read_text() == key:
        return
    started = time.perf_counter()
    print(f"creating the environment {ENVIRONMENT.name} (once, a few minutes) ...", flush=True)
    if not any(ENVIRONMENT.glob("installed-*")):  # none yet, or an unfinished one
        try:
            venv.EnvBuilder(with_pip=True, clear=True, symlinks=os.name != "nt").create(ENVIRONMENT)
        except subprocess.CalledProcessError:
            sys.exit(
                "error: this Python cannot create virtual environments. On Debian and Ubuntu install python3-venv."
            )
    target = f"{ROOT}[{extras}]" if extras else str(ROOT)
    try:
        call(["python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
              "--constraint", str(ROOT / "constraints.txt"), "--editable", target])  # fmt: skip
    except SystemExit:
        free = {str(path): shutil.disk_usage(path).free / 1e9 for path in (ROOT, Path(tempfile.gettempdir()))}
        if min(free.values()) < GIGABYTES:
            left = " and ".join(f"{size:.1f} GB in {path}" for path, size in free.items())
            print(f"error: the set-up needs about {GIGABYTES} GB, free are {left}. Free disk space and rerun.")
        raise
    check_torchvision()
    stamp.write_text(key)
    print(f"environment ready in {time.perf_counter() - started:.0f} s", flush=True)


def check_extras(names: list[str]) -> list[str]:
    """Return the names sorted; end if one is not an extra of pyproject.toml, which pip would only warn about."""
    import tomllib  # not at the top: an older Python needs the message of `main`

    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name in names:
        if name not in known:
            sys.exit(f"error: unknown extra '{name}'. Available: {', '.join(known)}.")
    return sorted(set(names))


def check_torchvision() -> None:
    """Print a note if torch and torchvision are builds for different devices, which only winnow itself can load."""
    command = [str(BIN / "python"), "-c", "import torchvision"]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if "operator torchvision::" in tried.stderr:
        print(
            "note: the package index has torch and torchvision for different devices (CPU and CUDA). winnow works. In "
            "your own scripts call winnow.models.ensure_torchvision() before `import timm` or `import torchvision`.",
            flush=True,
        )


def call(command: list[str]) -> None:
    """Run a program of the environment; end with its exit code if it fails."""
    code = subprocess.call([str(BIN / command[0]), *command[1:]])
    if code:
        sys.exit(code)


def main() -> None:
    """Set up the environment, then run the task."""
    if sys.version_info < (3, 11):  # noqa: UP036 (machines with an older one need the message)
        sys.exit(f"error: winnow requires Python 3.11 or newer, this is {sys.version.split()[0]}")
    if len(sys.argv) < 2 or sys.argv[1] not in TASKS:
        sys.exit(f"usage: python3 start.py {'|'.join(TASKS)} [ARGUMENTS]")
    extras, commands = TASKS[sys.argv[1]]
    arguments = sys.argv[2:]
    if sys.argv[1] == "install":
        extras, arguments = ",".join([extras, *check_extras(arguments)]), []
    install(extras)
    if sys.argv[1] in ("test", "docs"):
        os.chdir(ROOT)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # tests start many processes, which would each compile winnow
    for command in commands[:-1]:
        started = time.perf_counter()
        print("$", " ".join(command), flush=True)
        call(command)
        print(f"  ({time.perf_counter() - started:.0f} s)", flush=True)
    started = time.perf_counter()
    call([*commands[-1], *arguments])
    print(f"({' '.join(commands[-1][:2])}: {time.perf_counter() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
