"""A kernel's failure is told as one, unless Triton's interpreter itself is what fails."""

import pytest

from tests import interpreter


def test_a_failure_is_one_where_the_interpreter_works() -> None:
    with pytest.raises(AssertionError, match="wrong number"):
        interpreter.run_interpreted("raise SystemExit('wrong number')")


def test_nothing_can_be_told_where_the_interpreter_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_run", lambda script: "Traceback\nTypeError: only 0-dimensional arrays")
    with pytest.raises(pytest.skip.Exception, match="cannot count with this NumPy: TypeError: only 0-dim"):
        interpreter.run_interpreted("pass")
    monkeypatch.setattr(interpreter, "_run", lambda script: None)
    interpreter.run_interpreted("pass")
