"""The limits that tests set hold."""

from __future__ import annotations

import resource
import sys
import time

import pytest

from tests.limits import bounded


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce the limit")
def test_memory_beyond_the_limit_is_an_error() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with bounded(memory=2**28), pytest.raises(MemoryError):
        bytearray(2**29)
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
    with bounded(memory=2**30):
        assert len(bytearray(2**29)) == 2**29


def test_time_beyond_the_limit_is_an_error() -> None:
    with pytest.raises(TimeoutError), bounded(seconds=0.05):
        time.sleep(10)
    with bounded(seconds=0.05):
        pass
    time.sleep(0.1)
