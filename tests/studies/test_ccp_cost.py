"""What CCP costs: measured on a network that takes seconds, and told from the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from winnow.data import ImageCache
from winnow.references import ChanceConstrainedProxies
from winnow.studies import STUDIES, Task, ccp_cost
from winnow.studies.ccp_cost_report import THEIR_COUNT, how, told
from winnow.studies.timing import NoiseImages, TimingSetup

pytestmark = pytest.mark.filterwarnings("ignore:the backbone")


def test_memory_is_counted_and_problems_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    classes, width = 9, 128
    monkeypatch.setattr(ccp_cost, "SIZES", {True: ("resnet20", 16, 1, 1)})
    monkeypatch.setattr(ccp_cost, "CASES", {"few": (classes, "cub"), "many": (100, "sop")})
    findings = STUDIES["ccp-cost"](Task(small=True))
    plain, few, many = findings.rows
    assert [row["proxies"] for row in findings.rows] == [0, 8 * classes, 400]
    assert few["new problem, ms"] > 0
    assert many["new problem, ms"] is None, "there are no images of so many classes"
    assert plain["picking proxies, ms"] is None
    assert few["picking proxies, ms"] > 0
    assert many["picking proxies, ms"] > 0
    # A proxy has itself, a gradient and two moments.
    key = "weights, gradients and moments, MB"
    assert few[key] - plain[key] == pytest.approx(4 * 8 * classes * width * 4 / 2**20)
    assert few["previous weights, MB"] == many["previous weights, MB"] > 0
    assert plain["previous weights, MB"] == plain["best weights of a problem, MB"] == plain[THEIR_COUNT] == 0
    assert many[THEIR_COUNT] - few[THEIR_COUNT] == pytest.approx((400 - 72) * width * 4 / 2**20)
    assert all(row["ratio"] > 0 for row in findings.rows)
    assert len(findings.figure.axes) == 2


def test_picking_leaves_the_proxies_and_takes_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    store = ImageCache(NoiseImages(16, 3), resize=16, cache="device", device=device)
    words = ["backbone=resnet20", "backbone.weights=random", "image.resize=16", "image.crop=16", "pooling=gap", "dim=8",
             "loss=c2", "train.device=cpu"]  # fmt: skip
    trainer = TimingSetup(device, store, words, 1, num_classes=50).build_trainer(
        8, "references=ccp", "references.preset=sop"
    )
    seen: list[tuple[int, ...]] = []
    whole = ChanceConstrainedProxies.seed

    def seed(self: ChanceConstrainedProxies, pool: torch.Tensor, classes: torch.Tensor, **settings: Any) -> None:
        seen.append(tuple(pool.shape))
        whole(self, pool, classes, **settings)

    monkeypatch.setattr(ChanceConstrainedProxies, "seed", seed)
    before = trainer.objective.references.proxies.clone()
    assert ccp_cost.picking_time(trainer, device, 2) > 0
    assert set(seen) == {(50, 7, 8)}
    assert torch.equal(trainer.objective.references.proxies, before)


def row(ratio: float, picking: float | None, memory: float, whole: float | None = None) -> dict[str, object]:
    return {"method": "x", "proxies": 9, "step, ms": 10.0, "ratio": ratio, "picking proxies, ms": picking,
            "new problem, ms": whole, "in all, MB": memory, THEIR_COUNT: memory / 2}  # fmt: skip


def test_costs_are_checked() -> None:
    text = told([row(1, None, 100), row(1.02, 8.0, 100, 75.0), row(1.2, 300.0, 150)])
    assert "x (9 proxies) +2.0 %, agrees (up to 10 %)" in text
    assert "costs nothing on CUB: 8.0 ms, agrees (up to 10 ms), +0.80 % of a step at most" in text
    assert "takes 75 ms for one with its pool embedded, +7.5 % of a step if they are as short as can be, agrees" in text
    assert text.count("new problems do not count") == 1, "it is measured where there are images"
    assert "60 MB at most: 50.0 MB, agrees; +0.0 MB in all" in text
    assert "x (9 proxies) +20.0 %, does not agree (up to 10 %)" in text
    assert "in the long run: 300.0 ms, agrees (up to 400 ms), +30.00 % of a step at most" in text
    assert "60 MB at most: 75.0 MB, does not agree; +50.0 MB in all" in text
    text = told([row(1, None, 100), row(1, 11.0, 100, 101.0), row(1, 401.0, 100)])
    assert "11.0 ms, does not agree" in text
    assert "+10.1 % of a step if they are as short as can be, does not agree" in text
    assert "401.0 ms, does not agree" in text
    assert "far smaller" in how("net", 64, "cpu")
    assert "far smaller" not in how("resnet50", 227, "cuda")
