"""Average pooling and GSP on bags of learned tokens, half of them background."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from winnow.evaluation import retrieval_metrics
from winnow.functional import convex_hull, hull_overlap
from winnow.losses import ContrastiveLoss
from winnow.pooling import GSP
from winnow.report.style import INK, new_figure, styled
from winnow.studies.artifacts import StoredRun, require_run
from winnow.studies.scores import BY_SEED, Scores, seed_means
from winnow.studies.settings import scales
from winnow.studies.spec import Claim, Evidence, Measurement, Row, Scale, Study, StudyRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOX = 0.3  # [Thesis] keeps token vectors within [-0.3, 0.3]
EPOCH = 100  # steps between validations
PATIENCE = 30  # epochs, as in [Thesis]
MARGINS = (0.2, 0.5)  # distance to which C2 separates classes
GAIN = 70.0  # points of MAP@R, [Thesis], chapter 6
APART = 5.0  # percent of bags in another hull, below which hulls count as apart
VALIDATION, HULLS = "validation", "bags in another class's hull, %"
Method = Literal["GAP", "GSP"]


@dataclass(frozen=True)
class Setting:
    """Settings of a run; stored runs have the same names of settings."""

    classes: int = 16
    tokens: int = 4  # of each class, and of the background
    bag: int = 50  # tokens of a sample
    background: tuple[float, float] = (0.5, 0.1)  # mean and std of the fraction of background in a bag
    bags: int = 128  # training bags of each class; as many for validation, and for the test
    margin: float = 0.2  # of C2
    lr: float = 1e-4
    steps: int = 20000  # at most
    warm_up: int = 4096  # steps of average pooling before the prototypes of GSP are initialized
    prototypes: int = 64
    mu: float = 0.3  # below the true fraction, which a user does not know
    eps: float = 60.0  # tokens are at most 0.85 apart, local features of images up to 2


@dataclass
class Trained:
    """A finished run."""

    setting: Setting
    method: str
    seed: int
    tokens: Tensor  # background tokens last
    embedded: Tensor  # test bags
    labels: Tensor
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> str:
        """Name of its row."""
        return row_name(self.method, self.setting.margin)


def row_name(method: str, margin: float) -> str:
    """Return the name of a row."""
    return f"{method}, margin {margin:g}"


# --- Training ---------------------------------------------------------------------------------------------------------


def draw_bags(setting: Setting, generator: torch.Generator) -> Tensor:
    """Return bags (classes, bags, bag) of token numbers, background tokens last."""
    shape = (setting.classes, setting.bags, setting.bag)
    own = torch.arange(setting.classes)[:, None, None] * setting.tokens
    own = own + torch.randint(setting.tokens, shape, generator=generator)
    shared = setting.classes * setting.tokens + torch.randint(setting.tokens, shape, generator=generator)
    mean, deviation = setting.background
    fraction = mean + deviation * torch.randn(*shape[:2], 1, generator=generator)
    count = (fraction * setting.bag).round().clamp(1, setting.bag - 1)
    return torch.where(torch.arange(setting.bag) < count, shared, own)


def train(setting: Setting, method: Method, seed: int) -> Trained:
    """Train tokens with a pooling until validation stalls; return the best ones."""
    generator = torch.Generator().manual_seed(seed)
    fit, val, test = (draw_bags(setting, generator) for _ in range(3))
    start = torch.rand((setting.classes + 1) * setting.tokens, 2, generator=generator)
    tokens = nn.Parameter(BOX * (2 * start - 1))
    pool = GSP(2, num_prototypes=setting.prototypes, mu=setting.mu, eps=setting.eps)
    loss = ContrastiveLoss(pos_margin=0.0, neg_margin=setting.margin)
    loss.normalizer = lambda vectors: vectors  # as in [Thesis]: only the box bounds the embeddings
    optimizer = torch.optim.Adam([tokens, *pool.parameters()], lr=setting.lr)
    labels = torch.arange(setting.classes).repeat(4)
    every = torch.arange(setting.classes).repeat_interleave(setting.bags)
    warm_up = setting.warm_up if method == "GSP" else 0

    def embed(bags: Tensor, step: int) -> Tensor:
        features = tokens[bags]
        pooled: Tensor = pool(features) if method == "GSP" and step >= warm_up else features.mean(dim=1)
        return pooled

    def evaluate(bags: Tensor, step: int) -> tuple[Tensor, float]:
        pool.eval()
        with torch.no_grad():
            embedded = embed(bags.flatten(0, 1), step)
        pool.train()
        return embedded, retrieval_metrics(embedded, every)["MAP@R"]

    best, best_step, saved = -1.0, 0, (tokens.detach().clone(), pool.state_dict())
    for step in range(setting.steps):
        picked = torch.randint(setting.bags, (len(labels),), generator=generator)
        value = loss(embed(fit[labels, picked], step), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        with torch.no_grad():
            tokens.clamp_(-BOX, BOX)
            pool.prototypes.clamp_(-BOX, BOX)
        # GSP without initialized prototypes is no candidate.
        if (step + 1) % EPOCH == 0 and (pool.prototypes_ready or method == "GAP"):
            score = evaluate(val, step)[1]
            if score > best:
                best, best_step = score, step + 1
                state = {key: one.clone() for key, one in pool.state_dict().items()}
                saved = (tokens.detach().clone(), state)
            elif step + 1 - best_step >= PATIENCE * EPOCH:
                break
    with torch.no_grad():
        tokens.copy_(saved[0])
    pool.load_state_dict(saved[1])
    embedded, score = evaluate(test, setting.steps)
    run = Trained(setting, method, seed, tokens.detach(), embedded, every)
    run.numbers = {"MAP@R": score, "validation": best, "overlap": overlap(run), "steps": best_step}
    return run


def overlap(run: Trained) -> float:
    """Return the fraction of test bags within the hull of another class's bags."""
    groups = [run.embedded[run.labels == label] for label in range(run.setting.classes)]
    corners = [group[convex_hull(group)] for group in groups]
    return float(hull_overlap(run.embedded, run.labels, corners).mean())


def trained(request: StudyRequest, setting: Setting, method: Method, seed: int) -> Trained:
    """Train a run, or read the stored one.

    Raises:
        ConfigError: If the stored run has other settings.
        DataError: If the run is missing and training is off.
    """

    def make() -> StoredRun:
        with one_thread():
            run = train(setting, method, seed)
        return StoredRun(run.numbers, {"tokens": run.tokens, "embedded": run.embedded, "labels": run.labels})

    asked = {"setting": asdict(setting), "method": method, "seed": seed}
    stored = require_run(request, f"{method}-margin-{setting.margin}-seed{seed}", asked, make)
    tokens, embedded, labels = (stored.tensors[key] for key in ("tokens", "embedded", "labels"))
    return Trained(setting, method, seed, tokens, embedded, labels, dict(stored.numbers))


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread, because dividing such small steps takes longer than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# --- Table and claims -------------------------------------------------------------------------------------------------


def rows_by_seed(runs: Sequence[Trained]) -> dict[int, list[Row]]:
    """Return a row for every run by seed, in percent, not rounded."""
    rows: dict[int, list[Row]] = {run.seed: [] for run in runs}
    for run in runs:
        score, validation, hulls = (100 * run.numbers[key] for key in ("MAP@R", "validation", "overlap"))
        own = {"MAP@R": score, VALIDATION: validation, HULLS: hulls, "steps": run.numbers["steps"]}
        rows[run.seed].append({"run": run.row, **own})
    return rows


def table(by_seed: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return a row for each method and margin: means over seeds."""
    rows: list[Row] = []
    for mean in seed_means(by_seed):
        scores = [row["MAP@R"] for own in by_seed.values() for row in own if row["run"] == mean["run"]]
        method, _, margin = mean["run"].partition(", margin ")
        rows.append({
            "method": method, "margin": float(margin), "runs": len(scores), "MAP@R": round(mean["MAP@R"], 1),
            "MAP@R std": round(statistics.stdev(scores), 1) if len(scores) > 1 else None,
            VALIDATION: round(mean[VALIDATION], 1), HULLS: round(mean[HULLS], 1), "steps": round(mean["steps"]),
        })  # fmt: skip
    return rows


def selected(s: Scores, method: str) -> str:
    """Return the row of a method with the margin that validation bags select."""
    return max((row_name(method, margin) for margin in MARGINS), key=lambda row: s.cell(row, VALIDATION))


def _gain(s: Scores) -> Evidence:
    gap, gsp = (selected(s, method) for method in ("GAP", "GSP"))
    return Evidence(f"{s[gsp]:.1f} ({gsp}), {s[gap]:.1f} ({gap})", s[gsp] - s[gap])


def _gain_at_one_margin(s: Scores) -> Evidence:
    gains = {margin: s[row_name("GSP", margin)] - s[row_name("GAP", margin)] for margin in MARGINS}
    margin = max(gains, key=gains.__getitem__)
    return Evidence(f"largest at margin {margin:g}", gains[margin])


def _hulls_overlap(s: Scores) -> Evidence:
    hulls = s.cell(selected(s, "GAP"), HULLS)
    return Evidence(f"{hulls:.1f}% of bags in another hull; above {APART:g}% by", hulls - APART)


def _hulls_are_apart(s: Scores) -> Evidence:
    hulls = s.cell(selected(s, "GSP"), HULLS)
    return Evidence(f"{hulls:.1f}% of bags in another hull; below {APART:g}% by", APART - hulls)


# --- Study ------------------------------------------------------------------------------------------------------------


def settings(scale: Scale) -> list[Setting]:
    """Return the settings of each margin."""
    base = scale.pick(quick=Setting(lr=1e-3, steps=2500, warm_up=800, bags=64), full=Setting())
    return [replace(base, margin=margin) for margin in MARGINS]


@dataclass(frozen=True, kw_only=True)
class Tokens(Study):
    """Tokens trained with each pooling, margin, and seed."""

    def measure(self, request: StudyRequest) -> Measurement:
        """Train the runs."""
        runs: list[Trained] = []
        for setting in settings(request.scale):
            for method in get_args(Method):
                for seed in request.scale.seeds:
                    runs.append(trained(request, setting, method, seed))
                    request.note(f"{runs[-1].row}, seed {seed}: MAP@R {100 * runs[-1].numbers['MAP@R']:.1f}")
        trained_with = [asdict(one) for one in settings(request.scale)]
        measured = _measurement(rows_by_seed(runs), {"seeds": len(request.scale.seeds), "settings": trained_with})
        return replace(measured, artifacts={"runs": runs})

    def restore(self, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement that a result file holds; the runs are missing."""
        return _measurement({int(seed): rows for seed, rows in content[BY_SEED].items()}, content["settings"])

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw tokens, bags, and hulls of the first seed, if the runs exist."""
        return {"": _draw(measured)} if measured.artifacts else {}


def _measurement(by_seed: Mapping[int, Sequence[Row]], settings: Mapping[str, Any]) -> Measurement:
    return Measurement(
        rows=table(by_seed), exact=seed_means(by_seed), by_seed=by_seed, settings=settings,
        details={BY_SEED: {str(seed): list(rows) for seed, rows in by_seed.items()}},
    )  # fmt: skip


@styled
def _draw(measured: Measurement) -> Figure:
    """Draw the first seed of each method, at the margin that validation selects."""
    figure = new_figure(7.4, 4.6)
    s = Scores(measured.exact)
    for number, method in enumerate(get_args(Method)):
        name = selected(s, method)
        axes = figure.add_subplot(1, 2, number + 1)
        _scatter(axes, next(run for run in measured.artifacts["runs"] if run.row == name))
        axes.set_title(f"{method}: MAP@R {s[name]:.1f}%, {s.cell(name, HULLS):.1f}% in another hull")
    keys = {"bags in their class's hull": ".", "tokens of the class": "o", "tokens of the background": "x"}
    handles = [figure.axes[0].plot([], [], mark, color=INK, markerfacecolor="none" if mark == "o" else INK)[0]
               for mark in keys.values()]  # fmt: skip
    title = "numbers: means over seeds; drawn: the first seed"
    figure.legend(handles, list(keys), loc="outside lower center", ncols=3, fontsize=8, title=title, title_fontsize=8)
    return figure


def _scatter(axes: Axes, run: Trained) -> None:
    """Draw one run.

    Dots are bags within the hull of their class, rings its tokens, and crosses background tokens.
    """
    import matplotlib

    colors = matplotlib.colormaps["tab20"]
    count = run.setting.classes * run.setting.tokens
    for label in range(run.setting.classes):
        color = colors(label % 20)
        bags = run.embedded[run.labels == label]
        corners = bags[convex_hull(bags)]
        own = run.tokens[label * run.setting.tokens : (label + 1) * run.setting.tokens]
        axes.fill(corners[:, 0], corners[:, 1], color=color, alpha=0.35, linewidth=0)
        axes.scatter(bags[:, 0], bags[:, 1], color=color, s=1.5, linewidths=0, rasterized=True)
        axes.scatter(own[:, 0], own[:, 1], s=22, facecolors="none", edgecolors=[color], linewidths=1.2)
    shared = run.tokens[count:]
    axes.scatter(shared[:, 0], shared[:, 1], marker="x", color=INK, s=30, linewidths=1.4)
    limit = 1.1 * float(torch.as_tensor(run.tokens).abs().max())
    axes.set_xlim(-limit, limit)
    axes.set_ylim(-limit, limit)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.spines[:].set_visible(True)


_SETTING = (
    "16 classes of four learned tokens, and four background tokens that all share; bags of 50 tokens, about half of "
    "them background, embedded in the plane with C2 and without normalization. Validation bags select the margin of "
    "each method. [Thesis] records no loss, dimension, eps, or number of prototypes."
)
_FIGURE, _CHAPTER = "[Thesis], Fig. 5.4", "[Thesis], chapter 6"
TOKENS = Tokens(
    name="tokens", title="Average pooling and GSP on bags of tokens", measures="GAP vs. GSP on bags of tokens",
    source=_FIGURE, group="Generalized Sum Pooling",
    scales=scales(
        Scale("quick", seeds=(0,), cost="1 minute, 4 runs", setting=_SETTING),
        Scale("full", seeds=(0, 1, 2), cost="15 minutes, 12 runs", setting=_SETTING),
    ),
    claims=(
        Claim("GSP improves on GAP", _FIGURE, _gain),
        Claim(f"GSP is {GAIN:g} points of MAP@R above GAP", _CHAPTER, _gain, size=GAIN),
        Claim(f"GSP is {GAIN:g} points above GAP at one margin", _CHAPTER, _gain_at_one_margin, size=GAIN),
        Claim("Class hulls overlap with GAP", _FIGURE, _hulls_overlap),
        Claim("Class hulls are apart with GSP", _FIGURE, _hulls_are_apart),
    ),
)  # fmt: skip
