"""Small grids and made-up scores for tests of studies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.conftest import TINY
from winnow.studies import GridStudy, Measurement, Scale, StudyRequest, Variant
from winnow.studies.settings import scales
from winnow.studies.spec import Claim
from winnow.training.overrides import Overrides


def tiny_grid(folder: Path, variants: Sequence[Variant], seeds: tuple[int, ...] = (0, 1), *claims: Claim) -> GridStudy:
    """Return a grid whose runs take two steps on a folder of images."""
    args = [f"data={folder}", *TINY, "train.device=cpu", "train.max_steps=2", "train.eval_steps=1"]
    scale = Scale("quick", Overrides.parse(*args), seeds)
    return GridStudy(
        name="tiny", title="Tiny", measures="nothing", source="", group="Other", scales=scales(scale, scale),
        variants=lambda _: variants, claims=claims,
    )  # fmt: skip


def request(study: GridStudy, runs: Path, **values: object) -> StudyRequest:
    """Return a request of the quick size."""
    return StudyRequest(study.scales["quick"], runs, **values)  # type: ignore[arg-type]


def made_up(
    study: GridStudy, scale: Scale, score: Callable[[Variant, int], float], without: Mapping[str, Sequence[int]] = {}
) -> Measurement:
    """Return a measurement with made-up scores, 40 in columns without scores, without some seeds of some variants."""
    variants = list(study.variants(scale))
    others = dict.fromkeys([*(column.name for column in study.columns), "best step", "steps"], 40.0)
    by_seed = {
        seed: [
            {"method": one.name, **others, **dict.fromkeys(study.metrics, score(one, seed))}
            for one in variants
            if seed not in without.get(one.name, ())
        ]
        for seed in scale.seeds
    }
    rows = []
    for one in variants:
        found = [score(one, seed) for seed in scale.seeds if seed not in without.get(one.name, ())]
        if found:
            rows.append({"method": one.name, **others, **dict.fromkeys(study.metrics, sum(found) / len(found))})
    missing = {name: list(seeds) for name, seeds in without.items()}
    return Measurement(rows=rows, exact=rows, by_seed=by_seed, variants=variants, missing=missing)
