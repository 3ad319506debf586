"""Grids of losses: all losses on emoji, losses and references on CUB-200-2011, and center regularizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from winnow.report.claims import format_points
from winnow.report.style import INK, method_colors, new_figure, styled
from winnow.studies.figures import draw_curves, finish_axis, percents
from winnow.studies.scores import Scores, mean
from winnow.studies.settings import (
    CUB_FOLD1,
    CUB_XBM,
    EMOJI,
    EMOJI_BASE,
    FAST_PROXIES,
    GSP_ZSR,
    NOTHING,
    ccp,
    component,
    gsp,
    pooling,
    scales,
    train,
)
from winnow.studies.spec import Claim, Column, Evidence, GridStudy, Measurement, Scale, Size, Variant
from winnow.training.overrides import Overrides

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from winnow.studies.runner import Runs, StudyRun

GPU = "runs on CUB-200-2011, a GPU"
LATE = 0.95  # fraction of the steps from which on the best weights are those of the very end


def _late(runs: Sequence[StudyRun]) -> int:
    return sum(run.result.best_step >= LATE * run.result.steps for run in runs)


# --- losses: Table 5.1 on emoji ---------------------------------------------------------------------------------------

LOSSES = ("c1", "c2", "triplet", "ms", "margin", "npair", "lifted", "proxy_anchor", "proxy_nca", "soft_triple")
"""Losses of the published runs."""
POOLED = {"GAP": pooling("gap"), GSP_ZSR: gsp(0.05, 20, zsr=0.1)}


def _loss_variants(scale: Scale) -> Iterator[Variant]:
    for loss in LOSSES:
        for name, settings in POOLED.items():
            yield Variant(f"{loss}, {name}", component("loss", loss) | settings, name)


def _least_gain(s: Scores) -> Evidence:
    gains = {loss: s[f"{loss}, {GSP_ZSR}"] - s[f"{loss}, GAP"] for loss in LOSSES}
    least = min(gains, key=gains.__getitem__)
    return Evidence(
        f"{sum(gain > 0 for gain in gains.values())} of {len(gains)} losses gain; least {least}", gains[least]
    )


_LOSS_DETAILS = "each loss at its defaults, none tuned"
LOSS_STUDY = GridStudy(
    name="losses", title="All losses with GAP and with GSP+ZSR", measures="all losses, GAP vs. GSP+ZSR",
    source="[Thesis], Table 5.1", group="Generalized Sum Pooling",
    scales=scales(
        EMOJI(steps=200, every=50, seeds=1, cost="2 minutes, 20 runs", details=_LOSS_DETAILS),
        EMOJI(steps=1000, every=50, seeds=3, cost="half an hour, 60 runs", details=_LOSS_DETAILS),
    ),
    variants=_loss_variants, columns=(Column("best at the end", _late),),
    claims=(Claim("GSP+ZSR improves every loss", "[Thesis], Table 5.1", _least_gain),),
)  # fmt: skip


# --- cub-losses: Tables 3.1 and 5.1 -----------------------------------------------------------------------------------

# Batches of 32 classes, faster proxies, and an epoch (100 steps) of a frozen backbone, as in the fair protocol.
PROXY_ANCHOR = component("loss", "proxy_anchor", preset="cub") | FAST_PROXIES
PROXY_ANCHOR |= train(classes_per_batch=32, samples_per_class=1, freeze_backbone_steps=100)
FARTHEST = 10.0
"""Weight toward the farthest centers: the best of 0.3 to 100 after 800 steps on the emoji validation classes."""
_C2, _MS = (component("loss", name, preset="cub") for name in ("c2", "ms"))
_CUB_CCP = ccp() | train(eval_steps=25, patience=60)
PUBLISHED = {"C2": 21.01, "C2 + CCP": 22.67, "C2 + XBM": 21.41, "Proxy-Anchor": 21.48, "MS": 19.64, "MS + CCP": 22.40}
"""Published MAP@R (Table 3.1): BN-Inception, 128-D, mean of four folds."""


def regularizer(name: str, toward: str = "", weight: float | None = None) -> Overrides:
    """Return the settings of a center regularizer."""
    values = {"toward": toward or None, "weight": weight}
    return component("regularizer", name, **{key: value for key, value in values.items() if value is not None})


CUB_METHODS: Mapping[str, tuple[Overrides, str]] = {
    "C2": (_C2, "pairs"),
    "C2 + CCP": (_C2 | _CUB_CCP, "CCP"),
    "C2 + XBM": (_C2 | CUB_XBM, "memory"),
    "Proxy-Anchor": (PROXY_ANCHOR, "proxies"),
    "Proxy-Anchor + R1, farthest": (PROXY_ANCHOR | regularizer("r1", "farthest", FARTHEST), "centers"),
    "Proxy-Anchor + R1, nearest": (PROXY_ANCHOR | regularizer("r1", "nearest"), "centers"),
    "Proxy-Anchor + R2": (PROXY_ANCHOR | regularizer("r2", weight=FARTHEST), "centers"),
    "MS": (_MS, "pairs"),
    "MS + CCP": (_MS | _CUB_CCP, "CCP"),
    "Proxy-Anchor + UniformFace": (PROXY_ANCHOR | regularizer("uniformface"), "centers"),
    "Proxy-Anchor + MHE": (PROXY_ANCHOR | regularizer("mhe"), "centers"),
}  # fmt: skip


def _cub_variants(scale: Scale) -> Iterator[Variant]:
    for name, (settings, group) in CUB_METHODS.items():
        published = {"[Thesis]": PUBLISHED[name]} if name in PUBLISHED else {}
        yield Variant(name, settings, group, published=published)


def _improves(name: str, base: str, source: str) -> Claim:
    def check(s: Scores) -> Evidence:
        return Evidence(f"{s[name]:.2f}, {s[base]:.2f}", s[name] - s[base])

    return Claim(f"{name} improves on {base}", source, check)


CUB_LOSSES = GridStudy(
    name="cub-losses", title="Losses and references on one fold of CUB-200-2011",
    measures="losses, CCP, XBM on one CUB fold", source="[Thesis], Table 3.1", group="Chance-constrained proxies",
    scales=scales(
        CUB_FOLD1(seeds=1, cost="CUB-200-2011, a GPU", base=pooling("gap") | train(max_steps=200), trial=True,
                  details="200 steps: a trial whose numbers mean nothing", source=""),
        CUB_FOLD1(seeds=3, cost=f"33 {GPU}", base=pooling("gap"),
                  details="GAP, 128-D, Adam 1e-5, batches of 32; CCP is validated every 25 steps, the others every "
                  f"100; regularizers toward the farthest centers have weight {FARTHEST:g}",
                  source="[Thesis]: BN-Inception, mean of four folds, embeddings scaled into the unit ball"),
    ),
    variants=_cub_variants,
    claims=(
        _improves("C2 + CCP", "C2", "[Thesis], Table 3.1"), _improves("MS + CCP", "MS", "[Thesis], Table 3.1"),
        _improves("C2 + XBM", "C2", "[Thesis], Table 3.1"),
        *(_improves(name, "Proxy-Anchor", "[Skewed], Table 1") for name in CUB_METHODS if " + R" in name),
        *(_improves(f"Proxy-Anchor + {name}", "Proxy-Anchor", "[Skewed], Table 1") for name in ("UniformFace", "MHE")),
    ),
)  # fmt: skip


# --- centers: [Skewed], Table 1, Figs. 2 and 3 ------------------------------------------------------------------------

OURS, BASELINE = "Proxy-Anchor + R1 farthest", "MS"
STABLE = 1.0  # points of R@1 within which a curve counts as stable
STABLE_FROM = 128  # embedding size from which the published curve is stable
BEST_DELTA, NEAR = 0.55, 0.1  # published best level on CUB, and what counts as near it
REGULARIZERS = {
    "R1 farthest": regularizer("r1", "farthest"),
    "R1 nearest": regularizer("r1", "nearest"),
    "R2 farthest": regularizer("r2", "farthest"),
    "UniformFace": regularizer("uniformface"),
    "MHE": regularizer("mhe"),
}
"""With the defaults of winnow, because the source gives no weights, gamma, and t."""
BATCH_WEIGHTS = {"R1 farthest": 0.1, "R1 nearest": 0.03, "R2 farthest": 0.1, "MHE": 0.01}
"""Weights for losses without proxies, whose centers are the class means of a batch."""


@dataclass(frozen=True)
class CenterGrid:
    """What one size of the study varies."""

    losses: Mapping[str, Overrides]
    dim: int  # embedding size where it does not vary
    dims: Sequence[int]  # other embedding sizes (Fig. 2)
    deltas: Sequence[float]  # levels (Fig. 3), in cosines
    crops: Mapping[str, Overrides]
    weights: Mapping[str, float]  # of regularizers with proxies, where they are not the defaults


@dataclass(frozen=True)
class CenterNames:
    """Names of the variants by what they are compared for."""

    table: Mapping[str, Mapping[str, str]]  # loss to regularizer ("" for none) to variant
    dims: Mapping[str, Mapping[float, str]]  # method to embedding size to variant
    deltas: Mapping[str, Mapping[float, str]]  # direction of R1 to level to variant


CENTER_GRIDS = {
    "quick": CenterGrid(
        losses={"Proxy-Anchor": component("loss", "proxy_anchor") | FAST_PROXIES, "MS": component("loss", "ms")},
        dim=128, dims=(32, 512), deltas=(0.0, 0.1, 0.2), crops={}, weights={},
    ),
    "full": CenterGrid(
        losses={
            "Proxy-Anchor": component("loss", "proxy_anchor", preset="cub") | FAST_PROXIES,
            "Proxy-NCA": component("loss", "proxy_nca") | FAST_PROXIES,
            "MS": _MS,
            "N-pair": component("loss", "npair"),
            "Lifted structure": component("loss", "lifted"),
        },
        dim=512, dims=(32, 64, 128, 256, 1024), deltas=(-0.4, -0.2, 0.0, 0.2, 0.4, 0.45, 0.55, 0.66),
        crops={"crop 256": Overrides({"image": {"resize": 292, "crop": 256}})},
        weights={"R1 farthest": FARTHEST, "R2 farthest": FARTHEST},
    ),
}  # fmt: skip


def _regularized(grid: CenterGrid, name: str, loss: str = "Proxy-Anchor") -> Overrides:
    """Return the settings of a loss with a regularizer."""
    weight = (grid.weights if loss.startswith("Proxy") else BATCH_WEIGHTS).get(name)
    extra = NOTHING if weight is None else Overrides({"regularizer": {"weight": weight}})
    return grid.losses[loss] | REGULARIZERS[name] | extra


def plan_centers(scale: Scale) -> tuple[list[Variant], CenterNames]:
    """Return all variants, and which of them each claim is about."""
    grid, found = CENTER_GRIDS[scale.name], dict[str, Variant]()
    dim = Overrides({"dim": grid.dim})

    def plan(name: str, settings: Overrides, group: str) -> str:
        found.setdefault(name, Variant(name, settings, group))
        return name

    table = {
        loss: {"": plan(loss, dim | settings, "loss alone")}
        | {name: plan(f"{loss} + {name}", dim | _regularized(grid, name, loss), name) for name in REGULARIZERS}
        for loss, settings in grid.losses.items()
    }
    compared = {OURS: _regularized(grid, "R1 farthest"), BASELINE: grid.losses["MS"]}
    dims = {
        name: {float(other): name if other == grid.dim
               else plan(f"{name}, dim {other}", settings | Overrides({"dim": other}), name)
               for other in sorted([*grid.dims, grid.dim])}
        for name, settings in compared.items()
    }  # fmt: skip
    deltas = {
        f"R1 {toward}": {
            delta: plan(f"Proxy-Anchor + R1 {toward}, delta {delta:g}",
                        dim | _regularized(grid, f"R1 {toward}") | Overrides({"regularizer": {"delta": delta}}),
                        f"R1 {toward}")
            for delta in grid.deltas
        }
        for toward in ("farthest", "nearest")
    }  # fmt: skip
    for name, crop in grid.crops.items():
        for each, settings in (("Proxy-Anchor", grid.losses["Proxy-Anchor"]), (OURS, compared[OURS])):
            plan(f"{each}, {name}", dim | settings | crop, each)
    return list(found.values()), CenterNames(table, dims, deltas)


def _gains(s: Scores, names: CenterNames) -> dict[str, dict[str, float]]:
    """Return the gain of each regularizer with each loss."""
    return {
        name: {loss: s[by_name[name]] - s[by_name[""]] for loss, by_name in names.table.items()}
        for name in REGULARIZERS
    }


def _every_loss_gains(names: CenterNames, name: str) -> Claim:
    def check(s: Scores) -> Evidence:
        gains = _gains(s, names)[name]
        least = min(gains, key=gains.__getitem__)
        return Evidence(f"least with {least}", gains[least])

    return Claim(f"{name} improves every loss", "[Skewed], Table 1", check)


def _center_claims(size: str) -> list[Claim]:
    """Return the claims about the variants of one size."""
    scale = Scale("quick" if size == "quick" else "full")
    names = plan_centers(scale)[1]

    def farthest(s: Scores) -> Evidence:
        means = {name: mean(gains) for name, gains in _gains(s, names).items()}
        far = max((name for name in means if "farthest" in name), key=means.__getitem__)
        near = max((name for name in means if "farthest" not in name), key=means.__getitem__)
        return Evidence(
            f"{far} {format_points(means[far])}, {near} {format_points(means[near])} on average",
            means[far] - means[near],
        )

    def curve(s: Scores, name: str) -> dict[float, float]:
        return {dim: s[variant] for dim, variant in names.dims[name].items()}

    def converged(s: Scores) -> Evidence:
        late = max(
            s.cell(one, "best step") / s.cell(one, "steps") for each in names.dims.values() for one in each.values()
        )
        return Evidence(f"latest best at {100 * late:.0f}% of its steps", 100 * (LATE - late), "percent")

    def ahead(s: Scores) -> Evidence:
        ours, baseline = curve(s, OURS), curve(s, BASELINE)
        return Evidence("least lead", min(ours[dim] - baseline[dim] for dim in ours))

    def stable(s: Scores) -> Evidence:
        high = [score for dim, score in curve(s, OURS).items() if dim >= STABLE_FROM]
        spread = max(high) - min(high)
        return Evidence(f"within {spread:.2f} points; {STABLE:g} minus that", STABLE - spread)

    def falls(s: Scores) -> Evidence:
        ours, baseline = (max(one.values()) - one[max(one)] for one in (curve(s, OURS), curve(s, BASELINE)))
        below = f"{ours:.2f} and {baseline:.2f} points below the best"
        return Evidence(below, min(STABLE - ours, baseline - STABLE))

    def matters(name: str) -> Claim:
        def check(s: Scores) -> Evidence:
            levels = [s[variant] for variant in names.deltas[name].values()]
            spread = max(levels) - min(levels)
            return Evidence(f"{spread:.2f} points from worst to best; beyond {STABLE:g}", spread - STABLE)

        return Claim(f"The level delta of {name} affects R@1", "[Skewed], Fig. 3", check)

    def best_level(name: str) -> Claim:
        def check(s: Scores) -> Evidence:
            levels = {delta: s[variant] for delta, variant in names.deltas[name].items()}
            best = max(levels, key=levels.__getitem__)
            return Evidence(f"best is {best:g}; near is within {NEAR}, by", NEAR - abs(best - BEST_DELTA), "of delta")

        return Claim(f"{name}: delta near {BEST_DELTA} is best", "[Skewed], Fig. 3", check)

    fig2 = [
        Claim(f"{OURS} is ahead of {BASELINE} at every embedding size", "[Skewed], Fig. 2", ahead),
        Claim(f"{OURS} is stable from {STABLE_FROM}-D on", "[Skewed], Fig. 2", stable),
        Claim(f"At the largest size {BASELINE} falls and {OURS} does not", "[Skewed], Fig. 2", falls),
    ]
    claims = [*(_every_loss_gains(names, name) for name in REGULARIZERS),
              Claim("The farthest centers matter more than the nearest", "[Skewed], Table 1", farthest)]  # fmt: skip
    if size == "full":  # where training is as long as the published one, whether it converged is part of the result
        claims.append(Claim("Precondition of Fig. 2: training converged", "winnow", converged))
        fig2 = [replace(claim, given=FULL_PRECONDITION) for claim in fig2]
    claims += [*fig2, *map(matters, names.deltas)]
    if size == "full":
        claims += map(best_level, names.deltas)
    return [replace(claim, scale=scale.name) for claim in claims]


_QUICK_CLAIMS = len(REGULARIZERS) + 1 + 3 + 2
FULL_PRECONDITION = _QUICK_CLAIMS + len(REGULARIZERS) + 1
"""Position of the precondition among all claims: those of the quick size are first."""


@dataclass(frozen=True, kw_only=True)
class CenterStudy(GridStudy):
    """A grid whose figure has three parts."""

    def figures(self, measured: Measurement) -> Mapping[str, Figure]:
        """Draw R@1 of losses with each regularizer, over embedding sizes, and over delta."""
        names = {one.name for one in measured.variants}
        size: Size = "full" if "N-pair" in names else "quick"
        return {"": _center_figure(plan_centers(self.scales[size])[1], measured.artifacts["runs"])}


@styled
def _center_figure(names: CenterNames, found: Runs) -> Figure:
    figure = new_figure(8.6, 6.2)
    grid = figure.add_gridspec(2, 2)
    _draw_table(figure.add_subplot(grid[0, :]), names, found)
    dims, deltas = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
    for axes, lines, title in ((dims, names.dims, "R@1 over the embedding size (%)"),
                               (deltas, names.deltas, "R@1 of Proxy-Anchor over delta (%)")):  # fmt: skip
        draw_curves(axes, found, lines, method_colors(["", *lines]), "P@1")
        axes.set_title(title)
        axes.legend(fontsize=7.5)
    sizes = sorted({dim for line in names.dims.values() for dim in line})
    finish_axis(dims, "embedding size", sizes, log=True)
    deltas.set_xlabel("delta; dashed: Proxy-Anchor alone")
    alone = percents(found, names.table["Proxy-Anchor"][""], "P@1")
    if alone:
        deltas.axhline(mean(alone), color=INK, linestyle=(0, (3, 3)), linewidth=0.8)
    return figure


def _draw_table(axes: Axes, names: CenterNames, found: Runs) -> None:
    """Draw every loss with every regularizer next to each other."""
    columns = list(next(iter(names.table.values())))
    colors = method_colors(columns)
    for shift, name in enumerate(columns):
        scores = {place: percents(found, by_name[name], "P@1") for place, by_name in enumerate(names.table.values())}
        offset = 0.7 * (shift / (len(columns) - 1) - 0.5)
        shown = {place + offset: mean(values) for place, values in scores.items() if values}
        axes.plot(list(shown), list(shown.values()), "o", color=colors[name], label=name or "loss alone")
    axes.set_xticks(range(len(names.table)), list(names.table))
    axes.set_title("R@1 on test classes (%): losses with each regularizer")
    axes.legend(fontsize=7.5, ncols=len(columns), loc="upper center", bbox_to_anchor=(0.5, -0.1))


# GSP, because with GAP all losses are close to chance on emoji.
_CENTERS_QUICK = EMOJI_BASE | gsp(0.05, 20) | train(
    optimizer="adamw", lr="3e-3", classes_per_batch=32, samples_per_class=2, max_steps=300, eval_steps=50
)  # fmt: skip
# 34 steps of 128 images are a pass over the training classes: 40 passes, the first with a frozen backbone.
_CENTERS_FULL = pooling("gap") | Overrides({"image": {"resize": 256, "crop": 224}}) | train(
    optimizer="adamw", lr="1e-4", classes_per_batch=32, samples_per_class=4, max_steps=1360, freeze_backbone_steps=34,
    eval_steps=68, patience=20,
)  # fmt: skip
_SKEWED = "[Skewed]: BN-Inception, all training classes, no validation; it gives no weights, gamma, and t"
CENTERS = CenterStudy(
    name="centers", title="Regularization of class centers", measures="center regularizers", source="[Skewed]",
    group="Other", metric="P@1",
    scales=scales(
        replace(
            EMOJI(steps=300, seeds=1, cost="3 minutes, 22 runs", source=_SKEWED,
                  details="GSP, AdamW, 128-D where the name states no other; levels delta fit these center distances"),
            base=_CENTERS_QUICK,
        ),
        CUB_FOLD1(seeds=3, cost=f"174 {GPU}", base=_CENTERS_FULL, source=_SKEWED,
                  details="GAP, AdamW 1e-4, 40 passes, crops of 224, 512-D where the name states no other; "
                  f"regularizers toward the farthest centers have weight {FARTHEST:g}"),
    ),
    variants=lambda scale: plan_centers(scale)[0], claims=(*_center_claims("quick"), *_center_claims("full")),
)  # fmt: skip
