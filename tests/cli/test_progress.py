"""Progress without a terminal: lines at intervals with rate and time left."""

from __future__ import annotations

import pytest

from winnow.cli import console
from winnow.cli.console import WorkBars, duration
from winnow.cli.progress import ConsoleCallback, describe_duration
from winnow.training.duration import Duration


class Clock:
    """Time that a test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(console, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_long_work_is_reported_at_intervals(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with WorkBars() as work:
        report = work.progress("features")
        for done in range(1, 50):  # one image per second
            clock.now += 1
            report(done, 50)
        report(50, 50)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"features: {n}/50, 1/s, {50 - n} s left" for n in (2, 12, 22, 32, 42)] + ["features: 50 done"]


def test_short_work_is_one_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with WorkBars("a") as work:
        report = work.progress("features")
        report(1, 2)
        report(2, 2)
        report(2, 2)  # ending twice is harmless
    assert capsys.readouterr().err.splitlines()[0] == "a: features: 2 done"


def test_training_reports_its_rate_from_where_it_resumed(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleCallback() as callback:
        callback.start(1000, 400)
        clock.now += 10
        callback.step(450)
        clock.now += 1
        callback.step(455)  # no line: the interval has not passed
        callback.validated({"step": 455, "val/MAP@R": 0.5}, False)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "training: 450/1000, 5/s, 110 s left".replace("110 s", "2 min")
    assert second == "step 455: val MAP@R 50.00, 5/s, 2 min left"


def test_the_loss_of_zsr_is_shown_beside_that_of_guessing(capsys: pytest.CaptureFixture[str]) -> None:
    with ConsoleCallback() as callback:
        callback.validated({"step": 5, "loss": 0.5, "zsr": 4.35, "zsr/guess": 4.317, "val/MAP@R": 0.5}, False)
    assert "ZSR 4.35 (guessing: 4.32)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "under 1 s"), (0.6, "1 s"), (89, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_expected_time_is_the_sum_of_features_and_steps() -> None:
    found = Duration(images=2000, features=180.0, step=0.25, steps=4000, first_stop=320)
    assert found.total == 180 + 1000
    text = describe_duration(found)
    for part in ("3 min for the features of 2,000 images", "80 s for 320 steps", "at most 17 min for 4,000 steps"):
        assert part in text
    last = describe_duration(Duration(images=0, features=0.0, step=0.25, steps=4000, first_stop=4000))
    assert "features" not in last
    assert "at most" not in last
