"""Arguments of the wrong type, dtype, or shape: each error names the argument and what to pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import winnow.functional
from winnow.functional import (
    analyze_average_pooling,
    clip_norm,
    convex_hull,
    covering_radius,
    greedy_k_center,
    gsp,
    gsp_weights,
    hard_selection,
    hard_skewed_mean,
    in_hull,
    l2_normalize,
    log_exp_mean,
    pairwise_distance,
    power_mean,
    prototype_histogram,
    soft_selection,
)

ROWS = torch.rand(4, 2)
BATCH = torch.rand(3, 4, 2)
TENSORS: dict[str, tuple[str, torch.Tensor, Callable[..., object]]] = {
    "clip_norm": ("vectors", ROWS, clip_norm),
    "l2_normalize": ("vectors", ROWS, l2_normalize),
    "pairwise_distance": ("x", ROWS, lambda x: pairwise_distance(x, ROWS)),
    "pairwise_distance to": ("y", ROWS, lambda y: pairwise_distance(ROWS, y)),
    "greedy_k_center": ("points", ROWS, lambda x: greedy_k_center(x, 2)),
    "greedy_k_center around": ("centers", ROWS, lambda x: greedy_k_center(ROWS, 2, x)),
    "covering_radius": ("points", ROWS, lambda x: covering_radius(x, ROWS)),
    "log_exp_mean": ("x", ROWS, lambda x: log_exp_mean(x, 2.0)),
    "power_mean": ("x", ROWS, lambda x: power_mean(x, 2.0)),
    "hard_skewed_mean": ("x", ROWS, lambda x: hard_skewed_mean(x, 2)),
    "convex_hull": ("points", ROWS, convex_hull),
    "in_hull": ("points", ROWS, lambda x: in_hull(x, ROWS)),
    "in_hull of": ("vertices", ROWS, lambda x: in_hull(ROWS, x)),
    "prototype_histogram": ("features", BATCH, lambda x: prototype_histogram(x, ROWS)),
    "analyze_average_pooling": ("features", BATCH, lambda x: analyze_average_pooling(x, torch.arange(3), 4)),
    "soft_selection": ("scores", ROWS, lambda x: soft_selection(x, 0.3)),
    "hard_selection": ("scores", ROWS, lambda x: hard_selection(x, 0.3)),
    "gsp_weights": ("costs", BATCH, lambda x: gsp_weights(x, 0.3, 5.0)),
    "gsp": ("features", BATCH, lambda x: gsp(x, ROWS, 0.3, 5.0)),
    "gsp with": ("prototypes", ROWS, lambda x: gsp(BATCH, x, 0.3, 5.0)),
}


@pytest.mark.parametrize("case", TENSORS)
def test_lists_arrays_and_integers_raise(case: str) -> None:
    name, good, call = TENSORS[case]
    call(good)
    for wrong, got in (
        (good.tolist(), rf"list\. Convert it with torch\.as_tensor\({name}\)\."),
        (good.numpy(), rf"numpy\.ndarray\. Convert it with torch\.as_tensor\({name}\)\."),
        (list(good), rf"list\. Join its tensors with torch\.stack\({name}\)\."),
    ):
        with pytest.raises(TypeError, match=rf"^{name}: expected a torch\.Tensor, got {got}$"):
            call(wrong)
    with pytest.raises(TypeError, match=rf"^{name}: expected floating-point numbers, got torch\.int64\."):
        call(good.long())


WRONG_SHAPES: dict[str, Callable[[], object]] = {
    r"x: expected shape \(n, d\) or \(B, n, d\), got \(4,\)": lambda: pairwise_distance(ROWS[:, 0], ROWS),
    r"y: expected shape \(m, d\), got \(3, 4, 2\)": lambda: pairwise_distance(BATCH, BATCH),
    r"y: expected shape \(m, 2\) to match x, got \(4, 1\)": lambda: pairwise_distance(ROWS, ROWS[:, :1]),
    r"points: expected shape \(\.\.\., n, d\), got \(4,\)": lambda: greedy_k_center(ROWS[:, 0], 2),
    r"centers: expected shape \(\.\.\., c, 2\) .* got \(4, 1\)": lambda: covering_radius(ROWS, ROWS[:, :1]),
    r"vertices: expected shape \(m, 2\) .* got \(0, 2\)": lambda: in_hull(ROWS, ROWS[:0]),
    r"features: expected shape \(B, n, d\), got \(4, 2\)": lambda: prototype_histogram(ROWS, ROWS),
    r"labels: expected 3 labels": lambda: analyze_average_pooling(BATCH, torch.arange(2)),
    r"scores: expected shape \(B, n\), got \(3, 4, 2\)": lambda: soft_selection(BATCH, 0.3),
    r"costs: expected shape \(B, m, n\), got \(4, 2\)": lambda: gsp_weights(ROWS, 0.3, 5.0),
    r"prior: expected shape \(3, 4\), got \(4, 2\)": lambda: gsp(BATCH, ROWS, 0.3, 5.0, prior=ROWS),
    r"mask: expected a bool tensor of shape \(3, 2\), got list": lambda: gsp_weights(
        BATCH, 0.3, 5.0, mask=[[True, True]] * 3,  # type: ignore[arg-type]
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG_SHAPES)
def test_wrong_shapes_raise(message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        WRONG_SHAPES[message]()


def test_numpy_numbers_are_accepted_as_mu_and_eps() -> None:
    expected = gsp(BATCH, ROWS, 0.3, 5.0)
    found = gsp(BATCH, ROWS, np.float64(0.3), np.float64(5.0))
    assert torch.equal(found.vector, expected.vector)


def test_outputs_unpack_in_their_documented_order() -> None:
    output = gsp(BATCH, ROWS, 0.3, 5.0)
    vector, weights, attributes = output
    assert (vector is output.vector, weights is output.weights, attributes is output.attributes) == (True,) * 3
    assert (vector.shape, weights.shape, attributes.shape) == ((3, 2), (3, 4), (3, 4))


def test_every_public_name_is_documented() -> None:
    for name in winnow.functional.__all__:
        value = getattr(winnow.functional, name)
        if callable(value) and name != "Normalizer":
            assert value.__doc__, name
