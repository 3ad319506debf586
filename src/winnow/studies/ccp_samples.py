"""Samples in the place of proxies, on MNIST, Fashion-MNIST or made images (section 3.3.1)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from winnow.data import ArrayImages
from winnow.errors import DataError
from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies import ccp_mnist
from winnow.studies.artifacts import StoredRun, keep_run
from winnow.studies.base import Findings, Task, paragraphs, with_data
from winnow.studies.ccp_mnist_report import PER_CLASS, POOL
from winnow.studies.outcomes import finished, verdict
from winnow.studies.synthetic_images import load_gray_images

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THESIS = {"samples": 98.06, "proxies": 97.21}
METHODS = {"samples": ["references=batch"], "proxies": ["references=ccp"]}
STEPS, SEEDS = {True: 600, False: 10_000}, {True: 2, False: 3}
WORDS = {True: ["train.lr=1e-2", "train.eval_steps=20"], False: []}  # few steps are to be large ones
MADE_HOW = "ten emoji in grey, drawings and learning rate chosen in short runs so that both ways learn"


@with_data(small=True, full=True)
def study(task: Task) -> Findings:
    """Training against samples and against CCP's proxies, in two dimensions on MNIST (98.06 and 97.21 in 3.3.1).

    Cost: 1 minute (4 runs); in full 30 minutes on MNIST or Fashion-MNIST, less on a GPU.
    """
    name, train, test = load_gray_images(task.data, quick=task.small)
    rows: list[dict[str, Any]] = []
    for seed in range(SEEDS[task.small]):
        for method, words in METHODS.items():
            row = run(task, name, method, [*words, f"seed={seed}"], train, test)
            rows += [] if row is None else [{"method": method, "seed": seed, **row, "thesis, MNIST": THESIS[method]}]
    settings = {"small": task.small, "data": name, "steps": STEPS[task.small], "seeds": SEEDS[task.small],
                "proxies": PER_CLASS, "pool": POOL, "network": ccp_mnist.NAMES[task.small],
                "tested": len(test)}  # fmt: skip
    if not rows:
        raise DataError(f"no run of ccp-samples is finished in {task.runs}: leave out --only-finished")
    found = {method: [row["test MAP@R"] for row in rows if row["method"] == method] for method in METHODS}
    missing = finished(len(rows), len(METHODS) * SEEDS[task.small], task.command("ccp-samples"))
    text = paragraphs(told(found), how(name, task.small), missing)
    return Findings("Samples and proxies", text, rows, draw(rows), settings)


def run(
    task: Task, name: str, method: str, words: list[str], train: ArrayImages, test: ArrayImages
) -> dict[str, Any] | None:
    """Train a run, or read what came of it; None where nothing more is to be trained.

    Raises:
        ConfigError: for a run that was made with other settings.
    """
    config = ccp_mnist.make_config([*words, *ccp_mnist.NETWORK[task.small], *WORDS[task.small]], STEPS[task.small])
    asked: dict[str, Any] = {"data": name, "images": [len(train), len(test)],
             "config": config.model_dump(mode="json", exclude={"data", "image", "augment"})}  # fmt: skip

    def train_it() -> StoredRun:
        task.note(f"{method}, seed {config.seed}: {config.train.max_steps} steps at most")
        solutions, records = ccp_mnist.solve(config, train, test)
        solution, record = max(zip(solutions, records, strict=False), key=lambda pair: pair[1]["best"])
        problems = len(records) if method == "proxies" else None
        return StoredRun({
            "test MAP@R": 100 * solution.test, "validation MAP@R": 100 * record["best"],
            "steps": sum(one["steps"] for one in records), "problems": problems,
        })  # fmt: skip

    kept = keep_run(task, f"{method}-seed{config.seed}", asked, train_it)
    return None if kept is None else dict(kept.numbers)


def told(found: dict[str, list[float]]) -> str:
    """Check: proxies come near samples, which are ahead by less than a point."""
    if not all(found[method] for method in METHODS):
        return "Runs are missing, so that the claims cannot be checked yet."
    samples, proxies = (statistics.mean(found[method]) for method in METHODS)
    spread = max((statistics.stdev(each) for each in found.values() if len(each) > 1), default=0.0)
    behind, theirs = samples - proxies, THESIS["samples"] - THESIS["proxies"]
    near = behind <= max(theirs, spread)
    seeds = f"seeds deviate by up to {spread:.2f}" if spread else "one seed"
    begin = (
        f"Samples have {samples:.2f} test MAP@R and proxies {proxies:.2f} ({seeds}); the documents have "
        f"{THESIS['samples']} and {THESIS['proxies']} on MNIST, and conclude that proxies can stand for samples:"
    )
    items = [
        f"- samples are ahead: {behind:+.2f} points, there {theirs:+.2f}, {verdict(behind, spread)}",
        f"- proxies come near: {'agrees' if near else 'does not agree'} (no farther behind than there, or than seeds "
        "deviate)",
    ]
    return paragraphs(begin, "\n".join(items))


def how(name: str, small: bool) -> str:
    """Say how it was made."""
    return (
        f"Made on {MADE_HOW if name == 'made' else name} (the documents: MNIST) with {ccp_mnist.NAMES[small]}: "
        f"embeddings in two dimensions, C2, chapter 3's normalisation, {PER_CLASS} proxies of a class out of pools of "
        f"{POOL}, or the batch's own samples in their place."
    )


def limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis that lets values near one another be told apart; percent end at 100."""
    room = max(0.15 * (max(values) - min(values)), 0.5)
    return max(min(values) - room, 0.0), min(max(values) + room, 100.0)


@styled
def draw(rows: list[dict[str, Any]]) -> Figure:
    """Draw test MAP@R of every run and the means, beside the thesis's."""
    figure = new_figure(4.6, 2.6)
    axes = figure.subplots()
    for place, (method, colour) in enumerate(method_colors(METHODS).items()):
        values = [row["test MAP@R"] for row in rows if row["method"] == method]
        if values:
            axes.barh(place, statistics.mean(values), color=colour, alpha=0.75, height=0.55)
            axes.plot(values, [place] * len(values), ".", color=INK, markersize=4)
        axes.plot(THESIS[method], place, "D", color="white", markeredgecolor=INK, label="thesis" if not place else None)
    axes.set_yticks(range(len(METHODS)), list(METHODS))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.set_xlim(*limits([*(row["test MAP@R"] for row in rows), *THESIS.values()]))
    axes.set_title("Test MAP@R, % (the axis does not start at 0)")
    figure.legend(loc="outside lower center", fontsize=8)
    return figure
