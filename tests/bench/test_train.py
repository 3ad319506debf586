from __future__ import annotations

from winnow.bench.train import AGAINST, run_train


def test_steps_are_timed_alone_and_side_by_side() -> None:
    told: list[str] = []
    bench = run_train(
        device="cpu", batches=(8,), packs=(1, 2), backbone="resnet20", crop=16, steps=2, repeats=2, note=told.append
    )
    rows = {(row.case, row.rival): row for row in bench.rows}
    assert bench.against == AGAINST
    alone = rows["batch 8", AGAINST]
    assert bench.ratio(alone) == 1
    assert alone.facts["images/s"] == 8 / alone.timing.median
    assert bench.ratio(rows["batch 8", "GSP + ZSR, loop"]) is not None
    assert {rival for case, rival in rows if case != "batch 8"} == {"1 side by side", "2 side by side"}
    assert all(row.timing.runs == 2 for row in bench.rows)
    assert len(told) == 2
