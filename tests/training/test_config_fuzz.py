"""Any value of any config key is accepted or refused with a `ConfigError`: no other exception, hang, or huge memory."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.limits import bounded, repeated
from winnow.errors import WinnowError
from winnow.training import load_config
from winnow.training.build import resolve_config
from winnow.training.config import config_keys

KEYS = sorted({key.name for key in config_keys()})
COMPONENTS = sorted({key.component for key in config_keys() if key.component})
EXTREME = [
    "", "null", "~", "[]", "{}", "[1]", "{1: 2}", "{a: {b: {c: 1}}}", "[[[[]]]]", "{a: 1, a: 2}", "[" * 200,
    "{a: " * 200,
    ".nan", ".inf", "-.inf", "-1", "0", "1e400", "1e-400", "1000000000000", "9" * 5000, "-" + "9" * 30, "0x10", "1_000",
    "true", "2024-01-01", "1:2:3", "'", '"', ": :", "- -", "!!python/object:os.system", "&a [*a]", "\x00", "\u202e",
    "a,b", "*.prototypes", "emoji", "gsp", "/dev/zero", "..",
    repeated(9),
]  # fmt: skip
VALUES = st.sampled_from(EXTREME) | st.text(max_size=12) | st.integers().map(str) | st.floats().map(str)
SMALL_VALUES = st.sampled_from(["1", "2", "3", "0.5", "0.1", "true", "false", "null"])


def check(args: list[str]) -> None:
    """Read and resolve a config as `winnow train` does before it reads data; a `WinnowError` is an answer."""
    with bounded(), contextlib.suppress(WinnowError):
        resolve_config(load_config(None, ["train.device=cpu", *args]))


@pytest.mark.parametrize("key", KEYS)
def test_extreme_values_of_every_key(key: str) -> None:
    component = next((one.component for one in config_keys() if one.name == key and one.component), "")
    before = [component] if component else []
    for value in EXTREME[:: 4 if "." in key else 1]:
        check([*before, f"{key}={value}"])


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES | SMALL_VALUES), min_size=1, max_size=5),
       st.sampled_from(["", *COMPONENTS]))  # fmt: skip
def test_any_values_of_any_keys(settings: list[tuple[str, str]], component: str) -> None:
    check([*([component] if component else []), *(f"{key}={value}" for key, value in settings)])
