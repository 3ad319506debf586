from __future__ import annotations

import pytest

from benchmarks.train import ADDITIONS, REFERENCE, run_train


@pytest.mark.slow
def test_steps_are_timed_alone_and_concurrently() -> None:
    notes: list[str] = []
    benchmark = run_train(
        device="cpu", batches=(8,), jobs=(1, 2), backbone="resnet20", crop=16, steps=2, repeats=2, note=notes.append
    )
    rows = {(row.case, row.method): row for row in benchmark.rows}
    assert benchmark.reference == REFERENCE
    alone = rows["batch 8", REFERENCE]
    assert benchmark.ratio(alone) == 1
    assert alone.facts["images/s"] == 8 / alone.timing.median
    assert benchmark.ratio(rows["batch 8", "GSP + ZSR, loop"]) is not None
    added = {method for case, method in rows if case == "additions, batch 8"}
    assert added == {REFERENCE, *ADDITIONS, "two passes, chunks of a quarter"}
    assert benchmark.ratio(rows["additions, batch 8", "averaged weights"]) is not None
    others = {method for case, method in rows if case not in ("batch 8", "additions, batch 8")}
    assert others == {"1 concurrent run", "2 concurrent runs"}
    assert all(row.timing.runs == 2 for row in benchmark.rows)
    assert len(notes) == 3
