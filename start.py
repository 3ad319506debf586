"""Set everything up and do one thing: `python3 start.py demo` or `python3 start.py test`.

Makes a virtual environment in `.venv` with the pinned versions of `constraints.txt`, once, then runs the command in it.
Needs Python 3.11 or newer and nothing else.
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
GIGABYTES = 5  # of disk that a set-up takes at most while it is made

USER = "serve,optuna"  # what all commands of the documentation need but for a cluster and other formats

# What each word needs installed, and what it runs; more words are passed on to the last command.
TASKS: dict[str, tuple[str, list[list[str]]]] = {
    "demo": (USER, [["winnow", "demo"]]),
    "run": (USER, [["winnow"]]),
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
    """Make the environment and install winnow in it, unless that was done for these very files."""
    files = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    key = hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()
    stamp = ENVIRONMENT / f"installed-{extras or 'core'}"
    if stamp.is_file() and stamp.read_text() == key:
        return
    started = time.perf_counter()
    print(f"setting up {ENVIRONMENT.name} (once; a few minutes) ...", flush=True)
    if not any(ENVIRONMENT.glob("installed-*")):  # none yet, or one that was never finished
        try:
            venv.EnvBuilder(with_pip=True, clear=True, symlinks=os.name != "nt").create(ENVIRONMENT)
        except subprocess.CalledProcessError:
            sys.exit("this Python cannot make virtual environments; on Debian and Ubuntu install python3-venv")
    target = f"{ROOT}[{extras}]" if extras else str(ROOT)
    try:
        call(["python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
              "--constraint", str(ROOT / "constraints.txt"), "--editable", target])  # fmt: skip
    except SystemExit:
        free = {str(place): shutil.disk_usage(place).free / 1e9 for place in (ROOT, Path(tempfile.gettempdir()))}
        if min(free.values()) < GIGABYTES:
            left = " and ".join(f"{size:.1f} GB in {place}" for place, size in free.items())
            print(f"the set-up takes about {GIGABYTES} GB; free are {left}: make room and call this again")
        raise
    stamp.write_text(key)
    print(f"set up in {time.perf_counter() - started:.0f} s", flush=True)


def call(command: list[str]) -> None:
    """Run a program of the environment; end with its exit code if it fails."""
    code = subprocess.call([str(BIN / command[0]), *command[1:]])
    if code:
        sys.exit(code)


def main() -> None:
    """Set up, then run the task."""
    if sys.version_info < (3, 11):  # noqa: UP036 (the very machine that has an older one needs to be told)
        sys.exit(f"winnow needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    if len(sys.argv) < 2 or sys.argv[1] not in TASKS:
        sys.exit(f"usage: python3 start.py {'|'.join(TASKS)} [more words]")
    extras, commands = TASKS[sys.argv[1]]
    install(extras)
    if sys.argv[1] in ("test", "docs"):
        os.chdir(ROOT)
    for command in commands[:-1]:
        started = time.perf_counter()
        print("$", " ".join(command), flush=True)
        call(command)
        print(f"  ({time.perf_counter() - started:.0f} s)", flush=True)
    started = time.perf_counter()
    call([*commands[-1], *sys.argv[2:]])
    print(f"({' '.join(commands[-1][:2])}: {time.perf_counter() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
