"""A failing kernel fails its test, unless Triton's interpreter itself is broken."""

import pytest

from tests.kernels import interpreter


@pytest.mark.slow
def test_a_failure_is_an_error_if_the_interpreter_works() -> None:
    with pytest.raises(AssertionError, match="wrong number"):
        interpreter.run_interpreted("raise SystemExit('wrong number')")


def test_a_failure_is_skipped_if_the_interpreter_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_run", lambda script: "Traceback\nTypeError: only 0-dimensional arrays")
    with pytest.raises(pytest.skip.Exception, match="with this NumPy: TypeError: only 0-dim"):
        interpreter.run_interpreted("pass")
    monkeypatch.setattr(interpreter, "_run", lambda script: None)
    interpreter.run_interpreted("pass")
