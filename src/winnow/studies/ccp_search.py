"""A Bayesian search over CCP's pull and its number of proxies (Fig. 3.5)."""

from __future__ import annotations

import importlib.util
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from winnow.errors import MissingExtraError
from winnow.protocols.memory import telling
from winnow.protocols.search import Search, importances
from winnow.protocols.space import parse_space
from winnow.report.search import contour_figure
from winnow.studies import single_emoji
from winnow.studies.base import Findings, Task, with_data
from winnow.studies.ccp_sweeps import FULL, LOSSES, SMALL, WHERE, ccp, images_of
from winnow.studies.cub_losses import CONFIG
from winnow.studies.outcomes import verdict

PULL, PROXIES = "references.pull", "references.per_class"
POOL = 16  # the documents', whatever the number of proxies
SPACE = [f"{PULL}=1e-7..10:log", f"{PROXIES}=1..16"]
TRIALS = {True: 12, False: 30}
# The documents' ablations train on two thirds of the training classes, and stop sooner.
ABLATION = ["data.train_classes=1-67", "data.val_classes=68-100", "train.patience=40"]
LOW, HIGH = 1e-5, 1e-1  # where the documents' pulls work well
FEW, SOME = 4, 8  # proxies of a class
ENOUGH = 10  # trials to tell what decides

Trial = tuple[float, int, float]
"""The pull, the proxies of a class, and the MAP@R of validation in percent."""


def make_search(task: Task) -> Search:
    """Return the search: C2 with CCP, by validation classes alone."""
    space, _ = parse_space(SPACE)
    own = [*LOSSES[task.small]["C2"], *ccp(pool=POOL)]
    if task.small:
        words = [f"data={images_of(task)}", *single_emoji.WORDS, *SMALL, *own]
        return Search(None, words, space, task.runs)
    where = [] if task.data is None else [f"data={task.data}"]
    return Search(CONFIG, [*FULL, *ABLATION, *own, *where], space, task.runs)


@with_data(small=False, full=True)
def study(task: Task) -> Findings:
    """A search by Optuna over CCP's pull lambda and its proxies of a class, with C2 (Fig. 3.5).

    Cost: 1 minute (12 trials; needs the optuna extra); in full 30 trials on CUB-200-2011 and a GPU.
    """
    if importlib.util.find_spec("optuna") is None:
        raise MissingExtraError("optuna", "optuna", "winnow study ccp-search")
    search, count = make_search(task), TRIALS[task.small]
    if task.only_finished:
        tried = search.open()
    else:
        if task.small:
            single_emoji.make_single_emoji(images_of(task))
        tried = search.run(count, ended=_note(task), shared=task.shared)
    with telling(search.memory):
        read = tried.trials
        trials = [(one.params[PULL], one.params[PROXIES], 100 * one.value) for one in read if one.value is not None]
        decides = importances(tried) if len(trials) >= ENOUGH else {}
    rows: list[dict[str, Any]] = [
        {"pull": float(f"{pull:.3g}"), "proxies": proxies, "validation MAP@R": round(value, 2)}
        for pull, proxies, value in sorted(trials, key=lambda one: -one[2])
    ]
    split = (
        "" if task.small else "; but classes 1-67 train, 68-100 validate and the patience is 40, as in the ablations"
    )
    text = f"{WHERE[task.small]}{split}. C2, pools of {POOL}. {told(trials)}"
    if decides:
        shares = ", ".join(f"{key.rpartition('.')[2]} {100 * share:.0f} %" for key, share in decides.items())
        text += f" Of what decides (PED-ANOVA): {shares}."
    if len(trials) < count:
        text += f" {len(trials)} of {count} trials are in: `{task.command('ccp-search')}` makes the others."
    places, values = [(pull, proxies) for pull, proxies, _ in trials], [value for _, _, value in trials]
    figure = contour_figure(("lambda", "proxies of a class"), places or [(LOW, 1)], values or [0.0], (True, False),
                            "MAP@R")  # fmt: skip
    settings = {"small": task.small, "space": SPACE, "trials": count, "words": list(search.words)}
    if search.file is not None:
        settings["config"] = search.file
    return Findings("A search over CCP's settings", text, rows, figure, settings, {"importances": decides})


def _note(task: Task) -> Callable[[int, Mapping[str, Any], float | None], None]:
    def ended(number: int, params: Mapping[str, Any], value: float | None) -> None:
        told = "failed" if value is None else f"{100 * value:.2f}"
        task.note(f"trial {number}: pull {params[PULL]:.2g}, {params[PROXIES]} proxies: {told}")

    return ended


def told(trials: Sequence[Trial]) -> str:
    """Check: neither a tiny nor a large pull does well, and more proxies help, at last by less."""
    if not trials:
        return "There are no trials yet."
    pull, proxies, value = max(trials, key=lambda one: one[2])
    return (
        "The documents say that without a pull, or with a large one, scores are lower than with lambda from "
        f"{LOW:g} to {HIGH:g}, and that more proxies help until it saturates; they chose 2e-4 and 8. Here the best of "
        f"{len(trials)} trials has lambda = {pull:.2g} and {proxies} proxies, {value:.2f} on validation classes. "
        f"{_told_pull(trials)} {_told_proxies(trials)}"
    )


def _told_pull(trials: Sequence[Trial]) -> str:
    below = [value for pull, _, value in trials if pull < LOW]
    within = [value for pull, _, value in trials if LOW <= pull <= HIGH]
    above = [value for pull, _, value in trials if pull > HIGH]
    if not below or not within or not above:
        return "Trials do not reach to both sides of that range, so that it cannot be checked."
    low, middle, high = map(statistics.mean, (below, within, above))
    return (
        f"Below that range trials have {low:.2f} in the mean, within it {middle:.2f} and above it {high:.2f}: that a "
        f"missing pull costs {_compared(within, below)}, that a large one does {_compared(within, above)}."
    )


def _told_proxies(trials: Sequence[Trial]) -> str:
    # A large pull would hide what the number of proxies does.
    groups = [[value for pull, proxies, value in trials if pull <= HIGH and low < proxies <= high]
              for low, high in ((0, FEW), (FEW, SOME), (SOME, POOL))]  # fmt: skip
    if not all(groups):
        return "Too few numbers of proxies were tried to check them."
    few, some, many = map(statistics.mean, groups)
    return (
        f"With no large pull, up to {FEW} proxies have {few:.2f}, up to {SOME} {some:.2f} and more {many:.2f}: that "
        f"more help {_compared(groups[1] + groups[2], groups[0])}, that it saturates "
        f"{'agrees' if many - some < some - few else 'does not agree'} (by the means, each of few trials)."
    )


def _compared(better: Sequence[float], worse: Sequence[float]) -> str:
    r"""Say whether trials are better than others by more than the standard error of the difference of their means.

    $$s^2 = s_1^2 / n_1 + s_2^2 / n_2$$
    """
    if min(len(better), len(worse)) < 2:
        return "cannot be told from so few trials"
    error = math.sqrt(sum(statistics.variance(each) / len(each) for each in (better, worse)))
    return verdict(statistics.mean(better) - statistics.mean(worse), error, of="trial")
