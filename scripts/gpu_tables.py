"""Train the tables that need a GPU: a queue of commands that packs runs, resumes, and continues where it stopped.

    python scripts/gpu_tables.py --list                  # tables, commands, and estimated minutes
    python scripts/gpu_tables.py --minutes 25            # train in this order for 25 minutes; rerun to continue
    python scripts/gpu_tables.py recipes-cub --jobs 6    # one table, six concurrent runs
    python scripts/gpu_tables.py --publish               # copy the tables to results/protocols

Each table is one `winnow` command with a log in its folder below `runs/gpu`. At the end of the time all commands are
interrupted, and a table of the finished runs is written. Checkpoints remain, so a rerun repeats no finished step.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "protocols"
BF16 = "train.precision=bf16-mixed"
TINY = (
    "backbone=resnet20", "backbone.weights=random", "image.resize=32", "image.crop=32", "augment.resize=32",
    "train.max_steps=4", "train.eval_steps=2", "train.classes_per_batch=2", "train.samples_per_class=2",
    "train.precision=32-true", "train.unit=steps", "train.warmup_steps=0", "train.freeze_backbone_steps=0",
)  # fmt: skip
"""Settings of runs that only test the queue."""
GRACE = 20.0
"""Seconds that an interrupted command has to end."""


@dataclass(frozen=True)
class Table:
    """A table of the queue.

    Attributes:
        name: Name in the queue.
        folder: Folder of its runs, and name of its files in results/protocols. Steps of one table share it.
        about: What it decides.
        words: Arguments of `winnow`, without the folder.
        minutes: Estimated minutes on one H200 in bfloat16.
    """

    name: str
    folder: str
    about: str
    words: tuple[str, ...]
    minutes: float

    @property
    def is_protocol(self) -> bool:
        """Whether the command is `winnow protocol`; otherwise it is `winnow study`."""
        return self.words[0] == "protocol"


CHAPTER_3 = ("--paper", "ccp", "--budget", "fixed", "train.max_steps=2000", "train.eval_steps=100")
"""The fair protocol of [CCP] at a fixed budget, with 20 validations and test evaluations of each run."""
NEW_PROXIES = "+ccp,references.max_steps=100"
"""CCP with new proxies every 100 steps, at a fixed budget."""
LOSSES = tuple(f"{loss}{ccp}" for loss in ("c2", "c1", "ms", "triplet") for ccp in ("", NEW_PROXIES))
DISTILLED = ("recipe=best", "recipe=best,distill=1,distill.decay=0.995")
RECIPES = (
    "recipe=proxy-anchor", "recipe=best", "recipe=potential-field", "recipe=ms+ccp", "recipe=c2+ccp", "recipe=c1+xbm",
    "recipe=c1+xbm+gsp", "recipe=libc+gsp", "recipe=hist-head",
)  # fmt: skip
COMMON = tuple(f"recipe=common,loss={loss}" for loss in ("proxy_anchor", "ms", "c2", "c1", "pfml"))
GSP = tuple(f"{loss}{more}" for loss in ("c2", "pa", "ms") for more in ("", "+gsp-only", "+gsp-zsr"))
BENCHMARKS = ("cub200", "cars196")


def _fair_3(name: str, about: str, minutes: float, *words: str) -> Table:
    return Table(
        name,
        "fair3-fixed-renewed-cub200-resnet50",
        about,
        ("protocol", "fair", "cub200", *words, *CHAPTER_3, BF16),
        minutes,
    )


def _each(protocol: str, name: str, about: str, minutes: float, *words: str) -> Iterator[Table]:
    """Yield a table of each benchmark dataset; Cars196 has as many images, and they train longer."""
    for dataset, factor in zip(BENCHMARKS, (1.0, 1.5), strict=True):
        short = f"{name}-{dataset}"
        command = ("protocol", protocol, dataset, *words, BF16)
        yield Table(
            short, f"{protocol}-{name.removesuffix('-first')}-{dataset}-resnet50", about, command, factor * minutes
        )


def _study(name: str, about: str, minutes: float, *words: str) -> Table:
    return Table(f"study-{name}", f"study-{name}", about, ("study", name, "--full", *words, BF16), minutes)


TABLES: tuple[Table, ...] = (
    _fair_3("ccp-first", "gain of CCP for C2 and C1, one run of each fold", 8.5, *LOSSES[:4], "--runs", "1"),
    *_each("conventional", "recipes-256", "best at 256 pixels, with and without distillation", 8, *DISTILLED),
    *_each("conventional", "recipes-first", "recipes, one run", 18, *RECIPES, "--runs", "1"),
    _fair_3("ccp-losses", "gain of CCP for all losses, one run of each fold", 8.5, *LOSSES, "--runs", "1"),
    *_each("fair", "gsp", "gain of GSP and ZSR ([Thesis], Tables 5.1 and 5.3)", 45, *GSP, "--budget", "fixed"),
    _fair_3("ccp", "gain of CCP for all losses, all runs ([Thesis], Table 3.1)", 34, *LOSSES),
    *_each("conventional", "recipes", "recipes of their authors, three runs", 36, *RECIPES),
    *_each("conventional", "common", "losses in one common recipe, three runs", 30, *COMMON),
    _study("localization", "weight of fine-tuned models inside the bounding boxes", 10),
    _study("collage", "poolings on CIFAR Collage with a bound that learns", 40, "--seeds", "0,1,2"),
    _study("mu", "fraction of kept features", 12, "--seeds", "0,1,2"),
    _study("m-eps", "prototypes and sharpness", 60, "--seeds", "0"),
    _study("ccp-alternate", "alternation of subproblems", 12, "--seeds", "1,2"),
    _study("ccp-pool", "pool size and proxies", 12, "--seeds", "1,2"),
    _study("ccp-mnist", "proxies and samples on MNIST", 10),
    _study("zero-shot", "zero-shot prediction with attributes", 20),
    _study("centers", "center regularization", 30),
)  # fmt: skip


def state_of(folder: Path) -> dict[str, str]:
    """Return the state of each table that was started: "finished", or why it is not."""
    file = folder / "queue.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def save_state(folder: Path, state: dict[str, str]) -> None:
    """Write the state of the tables."""
    (folder / "queue.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")


def command_of(table: Table, folder: Path, *, tiny: Path | None, jobs: int | None) -> list[str]:
    """Return the command of a table.

    Args:
        table: Table to train.
        folder: Folder of the queue.
        tiny: Folder of class folders that replaces the dataset, for a test of the queue; None to train the table.
        jobs: Concurrent runs of the command; None for winnow's default.
    """
    words = list(table.words)
    if tiny is not None:
        if table.is_protocol:
            words[2] = str(tiny)
            words = [*words, *TINY]
        else:
            words = [word for word in words if word not in ("--full", BF16)] + ["--quick", "train.max_steps=4"]
    options = ["-o", str(folder / table.folder), *(["--jobs", str(jobs)] if jobs else [])]
    return [sys.executable, "-m", "winnow", *words, *options]


def train(
    tables: Sequence[Table], folder: Path, *, minutes: float, concurrent: int, jobs: int | None, tiny: Path | None
) -> dict[str, str]:
    """Run the commands of unfinished tables in order until all have ended or the time is over."""
    state, end = state_of(folder), time.monotonic() + 60 * minutes
    waiting = [table for table in tables if state.get(table.name) != "finished"]
    running: dict[str, tuple[Table, subprocess.Popen[bytes], float]] = {}
    while (waiting or running) and time.monotonic() < end:
        while (
            len(running) < concurrent and (table := _next(waiting, [one for one, _, _ in running.values()])) is not None
        ):
            waiting.remove(table)
            running[table.name] = (table, start(table, folder, tiny=tiny, jobs=jobs), time.monotonic())
            print(f"{table.name}: started", flush=True)
        for name, (_, process, started) in list(running.items()):
            if process.poll() is None:
                continue
            state[name] = "finished" if process.returncode == 0 else f"exit code {process.returncode}"
            print(f"{name}: {state[name]} after {time.monotonic() - started:.0f} s", flush=True)
            save_state(folder, state)
            del running[name]
        time.sleep(0.2)
    for name, (table, process, _) in running.items():
        interrupt(process)
        state[name] = "interrupted"
        if table.is_protocol:
            command = [*command_of(table, folder, tiny=tiny, jobs=None), "--no-train"]
            with open(folder / table.folder / "log.txt", "ab") as log:
                subprocess.run(command, stdout=log, stderr=log, check=False, cwd=ROOT)
        print(f"{name}: interrupted; rerun to continue", flush=True)
    save_state(folder, state)
    return state


def _next(waiting: Sequence[Table], running: Sequence[Table]) -> Table | None:
    """Return the first table whose folder no running command uses; None if there is none."""
    used = {table.folder for table in running}
    return next((table for table in waiting if table.folder not in used), None)


def start(table: Table, folder: Path, *, tiny: Path | None, jobs: int | None) -> subprocess.Popen[bytes]:
    """Start the command of a table in a separate process group, with its output in the table's folder."""
    (folder / table.folder).mkdir(parents=True, exist_ok=True)
    with open(folder / table.folder / "log.txt", "ab") as log:
        command = command_of(table, folder, tiny=tiny, jobs=jobs)
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=ROOT)


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """End a command and all its processes; checkpoints remain."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def publish(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Copy the tables of protocols that have a finished run to results/protocols and return the new files."""
    written = []
    for name in dict.fromkeys(table.folder for table in tables if table.is_protocol):
        for suffix in (".json", ".csv", ".md", ".tex"):
            source = folder / name / f"table{suffix}"
            if source.is_file():
                written.append(Path(shutil.copyfile(source, RESULTS / f"{name}{suffix}")))
    return written


def describe(tables: Sequence[Table], state: dict[str, str]) -> str:
    """Return the queue as text: state, minutes, and command of each table."""
    blocks = []
    for table in tables:
        status = state.get(table.name, "not started")
        command = shlex.join(["winnow", *table.words])
        blocks.append(f"{table.name}: {table.about}. {table.minutes:g} GPU minutes, {status}.\n  {command}")
    total = sum(table.minutes for table in tables)
    return "\n".join([*blocks, f"{len(tables)} tables, {total:g} GPU minutes (estimates for one H200)"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="tables, in this order; default all")
    parser.add_argument("--list", action="store_true", help="print the tables and their state")
    parser.add_argument("--publish", action="store_true", help="copy finished tables to results/protocols")
    parser.add_argument("--minutes", type=float, default=1e6, help="time after which commands are interrupted")
    parser.add_argument("--concurrent", type=int, default=2, help="commands at a time")
    parser.add_argument("--jobs", type=int, help="concurrent runs of each command")
    parser.add_argument("--tiny", type=Path, metavar="DIR", help="test the queue on a folder of class folders")
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/gpu"), help="folder of the queue")
    given = parser.parse_args(arguments)
    known = {table.name: table for table in TABLES}
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"unknown table '{unknown[0]}'. Available: {', '.join(known)}.")
    tables = [known[name] for name in given.names] or list(TABLES)
    folder = given.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if given.list:
        print(describe(tables, state_of(folder)))
        return 0
    if given.publish:
        print("\n".join(f"wrote {path.relative_to(ROOT)}" for path in publish(tables, folder)))
        return 0
    state = train(tables, folder, minutes=given.minutes, concurrent=given.concurrent, jobs=given.jobs, tiny=given.tiny)
    return 0 if all(state.get(table.name) == "finished" for table in tables) else 1


if __name__ == "__main__":
    sys.exit(main())
