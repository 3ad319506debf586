"""What CCP costs: measured on a network that takes seconds, and told from the numbers."""

from __future__ import annotations

import pytest

from winnow.studies import STUDIES, Task, ccp_cost

pytestmark = pytest.mark.filterwarnings("ignore:the backbone")


def test_memory_is_counted_and_problems_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    classes, width = 9, 128
    monkeypatch.setattr(ccp_cost, "SIZES", {True: ("resnet20", 16, 1, 1)})
    monkeypatch.setattr(ccp_cost, "CASES", {"few": (classes, "cub"), "many": (100, "sop")})
    findings = STUDIES["ccp-cost"](Task(small=True))
    plain, few, many = findings.rows
    assert [row["proxies"] for row in findings.rows] == [0, 8 * classes, 400]
    assert few["new problem, ms"] > 0
    assert many["new problem, ms"] is None
    # A proxy has itself, a gradient and two moments.
    key = "weights, gradients and moments, MB"
    assert few[key] - plain[key] == pytest.approx(4 * 8 * classes * width * 4 / 2**20)
    assert few["previous weights, MB"] == many["previous weights, MB"] > 0
    assert plain["previous weights, MB"] == plain["best weights of a problem, MB"] == plain[ccp_cost.THEIR_COUNT] == 0
    assert many[ccp_cost.THEIR_COUNT] - few[ccp_cost.THEIR_COUNT] == pytest.approx((400 - 72) * width * 4 / 2**20)
    assert all(row["ratio"] > 0 for row in findings.rows)
    assert len(findings.figure.axes) == 2


def row(ratio: float, whole: float | None, memory: float) -> dict[str, object]:
    new = None if whole is None else 5.0
    return {"method": "x", "proxies": 9, "step, ms": 1.0, "ratio": ratio, "ratio, with new problems": whole,
            "new problem, ms": new, "in all, MB": memory, "previous weights, MB": 1.0,
            "best weights of a problem, MB": 1.0, ccp_cost.THEIR_COUNT: memory / 2}  # fmt: skip


def test_costs_are_checked() -> None:
    text = ccp_cost.told([row(1, None, 100), row(1.02, 1.08, 100), row(1.2, None, 150)], "net", 64, "cpu")
    assert "+2.0 % a step, +8.0 % with a new problem every 100 (5 ms each), which agrees" in text
    assert "50.0 MB as they count, which agrees, and +0.0 MB with" in text
    assert "+20.0 % a step, which does not agree" in text
    assert "75.0 MB as they count, which does not agree, and +50.0 MB with" in text
    assert "far smaller" in text
    assert "far smaller" not in ccp_cost.told([row(1, None, 100)], "resnet50", 227, "cuda")
