"""Cost of CCP: measured on a network that takes seconds, and claims that follow the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.studies.recorded import recorded_claims
from winnow.data import ImageCache
from winnow.references import ChanceConstrainedProxies
from winnow.report.claims import Verdict
from winnow.studies import Measurement, ccp_cost
from winnow.studies.ccp_cost import CCP_COST, COUNTED, CUB, NEW, PICKING, PLAIN, RATIO, SOP, TIME, TOTAL, Timed
from winnow.studies.scores import check_claims
from winnow.studies.timing import NoiseImages, TimingSetup

YES, NO = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED


def test_memory_is_counted_and_subproblems_start() -> None:
    classes, width = 9, 128
    cases = {CUB: (classes, "cub"), SOP: (100, "sop")}
    rows = ccp_cost.measure_costs(Timed("resnet20", 16, 1, 1), cases, torch.device("cpu"), lambda text: None)
    plain, few, many = rows
    assert [row["proxies"] for row in rows] == [0, 8 * classes, 400]
    assert few[NEW] > 0
    assert many[NEW] is None, "there are no images of so many classes"
    assert plain[PICKING] is None
    assert few[PICKING] > 0
    assert many[PICKING] > 0
    # A proxy has a value, a gradient, and two moments.
    key = "weights, gradients, and moments, MB"
    assert few[key] - plain[key] == pytest.approx(4 * 8 * classes * width * 4 / 2**20)
    assert few["previous weights, MB"] == many["previous weights, MB"] > 0
    assert plain["previous weights, MB"] == plain["best weights of a subproblem, MB"] == plain[COUNTED] == 0
    assert many[COUNTED] - few[COUNTED] == pytest.approx((400 - 72) * width * 4 / 2**20)
    assert all(row[RATIO] > 0 for row in rows)
    memory = [value for name, value in few.items() if name.endswith(", MB") and name not in (TOTAL, COUNTED)]
    assert few[TOTAL] == pytest.approx(sum(memory))
    assert len(CCP_COST.figures(Measurement(rows=rows))[""].axes) == 2


def test_picking_uses_pools_of_all_classes_and_restores_the_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    images = ImageCache(NoiseImages(16, 3), resize=16, cache="device", device=device)
    settings = ["backbone=resnet20", "backbone.weights=random", "image.resize=16", "image.crop=16", "pooling=gap",
                "dim=8", "loss=c2", "train.device=cpu"]  # fmt: skip
    trainer = TimingSetup(device, images, settings, 1, num_classes=50).build_trainer(
        8, "references=ccp", "references.preset=sop"
    )
    seen: list[tuple[int, ...]] = []
    whole = ChanceConstrainedProxies.seed

    def seed(self: ChanceConstrainedProxies, pool: torch.Tensor, classes: torch.Tensor, **values: Any) -> None:
        seen.append(tuple(pool.shape))
        whole(self, pool, classes, **values)

    monkeypatch.setattr(ChanceConstrainedProxies, "seed", seed)
    before = trainer.objective.references.proxies.clone()
    assert ccp_cost.picking_time(trainer, device, 2) > 0
    assert set(seen) == {(50, 7, 8)}
    assert torch.equal(trainer.objective.references.proxies, before)


def verdicts(ratio: float, picking: tuple[float, float], counted: float, new: float) -> list[Verdict]:
    """Return the verdicts for a step of 10 ms."""
    shared = {RATIO: ratio, COUNTED: counted}
    rows: list[dict[str, Any]] = [
        {"method": PLAIN, TIME: 10.0, RATIO: 1.0},
        {"method": CUB, **shared, PICKING: picking[0], NEW: new},
        {"method": SOP, **shared, PICKING: picking[1]},
    ]
    return [one.verdict for one in check_claims(CCP_COST.claims, Measurement(rows=rows), CCP_COST.scales["full"])]


def test_claims_follow_the_numbers() -> None:
    assert verdicts(1.02, (8.0, 300.0), 50.0, 75.0) == [YES] * 7  # 75 ms in 100 steps of 10 ms are 7.5%
    assert verdicts(1.02, (8.0, 300.0), 50.0, 81.0) == [*[YES] * 6, NO]
    assert verdicts(1.2, (11.0, 401.0), 75.0, 0.0) == [NO] * 7


def test_the_recorded_result_has_these_claims() -> None:
    assert recorded_claims(CCP_COST, "small") == [YES, YES, YES, NO, YES, YES, NO]
