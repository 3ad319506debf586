"""Center regularizers against a slow loop over their equations, and their shared contract."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import normalize

from winnow.errors import ConfigError
from winnow.functional import hard_skewed_mean, log_exp_mean, pairwise_distance, power_mean
from winnow.losses import ProxyAnchorLoss
from winnow.regularizers import (
    REGULARIZERS,
    CenterRegularizer,
    HypersphericalEnergyRegularizer,
    LogMeanExpRegularizer,
    PowerMeanRegularizer,
    TopKMeanRegularizer,
    UniformFaceRegularizer,
    class_means,
)

LABELS = torch.tensor([0, 0, 1, 2, 2, 3])


def make_centers(count: int = 6, width: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Rows = list[list[tuple[float, float]]]
"""For each center, the (similarity, distance) of every center it is compared with."""


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def hinge(value: float, delta: float | None) -> float:
    return value if delta is None else max(value - delta, 0.0)


def slow_r1(rows: Rows, *, toward: str, gamma: float, delta: float | None, measure: str) -> float:
    gamma = gamma if toward == "nearest" else -gamma
    results = []
    for row in filter(None, rows):
        nearness = [s if measure == "cosine" else -d for s, d in row]
        soft = math.log(mean([math.exp(gamma * x) for x in nearness])) / gamma if gamma else mean(nearness)
        results.append(hinge(soft, delta))
    return mean(results)


def slow_r2(rows: Rows, *, toward: str, t: float, delta: float | None, measure: str) -> float:
    pairs = list(itertools.chain(*rows))
    if not pairs:
        return 0.0
    numbers = [max((1 + s) / 2 if measure == "cosine" else d, 1e-4) for s, d in pairs]
    t = t if (toward == "nearest") == (measure == "cosine") else -t
    soft = mean([x**t for x in numbers]) ** (1 / t) if t else math.exp(mean([math.log(x) for x in numbers]))
    return hinge(soft if measure == "cosine" else -soft, delta)


def slow_hard(rows: Rows, *, toward: str, k: int, delta: float | None, measure: str) -> float:
    results = []
    for row in filter(None, rows):
        nearness = sorted((s if measure == "cosine" else -d for s, d in row), reverse=toward == "nearest")
        results.append(hinge(mean(nearness[:k]), delta))
    return mean(results)


def slow_uniformface(rows: Rows, *, offset: float) -> float:
    return mean([1 / (max(d, 1e-4) + offset) for _, d in itertools.chain(*rows)])


def slow_mhe(rows: Rows, *, s: int) -> float:
    return mean([max(d, 1e-4) ** -s if s else -math.log(max(d, 1e-4)) for _, d in itertools.chain(*rows)])


SLOW: dict[str, tuple[Callable[..., float], list[dict[str, Any]]]] = {
    "none": (lambda rows: 0.0, []),
    "r1": (slow_r1, [{"toward": "nearest"}, {"measure": "distance", "toward": "nearest", "gamma": 3.0}, {"gamma": 0.0},
                     {"toward": "nearest", "delta": 0.2}, {"measure": "distance", "delta": -1.75}]),
    "r2": (slow_r2, [{"measure": "cosine", "t": 3.0}, {"toward": "nearest", "t": 3.0}, {"t": 0.0}, {"delta": -1.75},
                     {"measure": "cosine", "toward": "nearest", "delta": 0.5}]),
    "hard": (slow_hard, [{"toward": "nearest", "k": 1}, {"k": 1}, {"toward": "nearest", "measure": "distance", "k": 2},
                         {"toward": "nearest", "delta": 0.2, "k": 3}, {"measure": "distance", "k": 1, "delta": -1.75}]),
    "uniformface": (slow_uniformface, [{"offset": 0.0}]),
    "mhe": (slow_mhe, [{"s": 0}, {"s": 1}]),
}  # fmt: skip
CASES = [(name, section) for name, (_, tuned) in SLOW.items() for section in ({}, *tuned)]
every_case = pytest.mark.parametrize(("name", "section"), CASES, ids=str)
pushing = pytest.mark.parametrize(("name", "section"), [c for c in CASES if c[0] != "none"], ids=str)
SHARED = ("name", "centers", "num_samples", "weight")


def build(name: str, section: dict[str, Any], **more: Any) -> Any:
    return REGULARIZERS.build({"name": name, **section, **more})


def expected(name: str, section: dict[str, Any], x: Tensor, labels: list[int], counted: list[bool]) -> float:
    vectors = [[v / math.hypot(*row) for v in row] for row in x.double().tolist()]
    rows: Rows = [[] for _ in vectors]
    for i, j in itertools.product(range(len(vectors)), repeat=2):
        if labels[i] != labels[j] and counted[i] and counted[j]:
            similarity = sum(a * b for a, b in zip(vectors[i], vectors[j], strict=True))
            rows[i].append((similarity, math.dist(vectors[i], vectors[j])))
    settings = REGULARIZERS.resolve({"name": name, **section}).model_dump()
    arguments = {key: value for key, value in settings.items() if key not in SHARED}
    return SLOW[name][0](rows, **arguments)


def backward(regularizer: Any, x: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor]:
    x = x.detach().clone().requires_grad_()
    value = regularizer(x, *rest)
    value.backward()
    assert x.grad is not None
    return value.detach(), x.grad


def test_all_regularizers_have_a_slow_reference() -> None:
    assert set(SLOW) == set(REGULARIZERS)


@every_case
@settings(max_examples=12, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=7),
    width=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    some=st.booleans(),
)
def test_equals_the_loop_over_its_equation(
    name: str, section: dict[str, Any], labels: list[int], width: int, seed: int, some: bool
) -> None:
    x = make_centers(len(labels), width, seed)
    counted = (make_centers(len(labels), 1, seed + 1)[:, 0] > -0.5) | (not some)
    value = build(name, section)(x, torch.tensor(labels), counted)
    assert float(value) == pytest.approx(expected(name, section, x, labels, counted.tolist()), rel=1e-6, abs=1e-9)
    alone = build(name, section)(x)  # each center is a class of its own
    everything = [True] * len(labels)
    by_hand = expected(name, section, x, list(range(len(labels))), everything)
    assert float(alone) == pytest.approx(by_hand, rel=1e-6, abs=1e-9)


@every_case
def test_gradient_equals_finite_differences(name: str, section: dict[str, Any]) -> None:
    assert gradcheck(lambda x: build(name, section)(x, LABELS), make_centers().requires_grad_())


@pushing
@pytest.mark.parametrize("seed", [0, 1])
def test_small_step_along_the_gradient_moves_centers_apart(name: str, section: dict[str, Any], seed: int) -> None:
    x = normalize(make_centers(8, 6, seed), dim=1)
    _, grad = backward(build(name, {**section, "delta": None} if "delta" in section else section), x)
    before, after = (pairwise_distance(y, y)[~torch.eye(8, dtype=torch.bool)] for y in (x, normalize(x - 1e-3 * grad)))
    arguments = REGULARIZERS.resolve({"name": name, **section}).model_dump()
    assert (after - before).mean() > 0
    if name == "hard" and arguments["k"] == 1:  # only the extreme pairs
        nearest = arguments["toward"] == "nearest"
        assert (after.min() > before.min()) if nearest else (after.max() > before.max())


@pushing
def test_gradient_descent_spreads_centers_out(name: str, section: dict[str, Any]) -> None:
    """Three centers near each other move apart in both directions."""
    section = {key: value for key, value in section.items() if key != "delta"}
    x = (torch.tensor([[1.0, 0.0, 0.0]]) + 0.2 * make_centers(3, 3).float()).double()
    start = pairwise_distance(normalize(x), normalize(x)).sum()
    for _ in range(30):
        x = normalize(x - 0.2 * normalize(backward(build(name, section), x)[1], dim=(0, 1)), dim=1)
    assert pairwise_distance(x, x).sum() > 2 * start


@pytest.mark.parametrize("measure", ["cosine", "distance"])
@pytest.mark.parametrize("name", ["r1", "r2", "hard"])
def test_direction_selects_the_centers_that_weigh_most(name: str, measure: str) -> None:
    """On a circle, a center at 0 degrees is compared with centers at 30 and 150 degrees."""
    angles = torch.tensor([30.0, 150.0], dtype=torch.float64).deg2rad().requires_grad_()
    others = torch.stack([angles.cos(), angles.sin()], dim=1)
    pairs = torch.ones(1, 2, dtype=torch.bool)
    section = {"measure": measure, **({"k": 1} if name == "hard" else {})}
    turn = {}
    for toward in ("nearest", "farthest"):
        value = build(name, {"toward": toward, **section}).penalty(others.new_tensor([[1.0, 0.0]]), others, pairs)
        (turn[toward],) = torch.autograd.grad(-value, angles, retain_graph=True)
        assert (turn[toward] >= 0).all()  # away from the center
    assert turn["nearest"][0] > 10 * turn["nearest"][1]
    assert turn["farthest"][1] > 2 * turn["farthest"][0]


@pytest.mark.parametrize("section", [{"name": "r1"}, {"name": "r2", "measure": "distance"}])
def test_nearest_spreads_centers_evenly_and_farthest_gathers_two_bundles(section: dict[str, Any]) -> None:
    results = {}
    for toward in ("nearest", "farthest"):
        x = make_centers(12, 3).requires_grad_()
        optimizer = torch.optim.Adam([x], lr=0.05)
        for _ in range(300):
            optimizer.zero_grad()
            REGULARIZERS.build({**section, "toward": toward})(x).backward()
            optimizer.step()
        unit = normalize(x.detach(), dim=1)
        results[toward] = pairwise_distance(unit, unit)[~torch.eye(12, dtype=torch.bool)]
    assert results["nearest"].min() > 0.8  # 12 points on a sphere are at most 1.05 apart
    assert ((results["farthest"] < 0.1) | (results["farthest"] > 1.9)).all()


def test_r1_is_the_mean_of_log_exp_means() -> None:
    x = normalize(make_centers(), dim=1)
    others = ~torch.eye(6, dtype=torch.bool)
    for toward, sign in (("nearest", 1), ("farthest", -1)):
        by_hand = torch.stack([log_exp_mean((x @ x[i])[others[i]], sign * 7.0) for i in range(6)]).mean()
        torch.testing.assert_close(LogMeanExpRegularizer(toward=toward, gamma=7.0)(x), by_hand)


def test_soft_means_converge_to_the_top_k_mean() -> None:
    x = normalize(make_centers(), dim=1)
    others = ~torch.eye(6, dtype=torch.bool)
    for toward in ("nearest", "farthest"):
        for measure in ("cosine", "distance"):
            hard = TopKMeanRegularizer(toward=toward, k=1, measure=measure)(x)
            torch.testing.assert_close(
                LogMeanExpRegularizer(toward=toward, measure=measure, gamma=1e6)(x), hard, rtol=1e-4, atol=1e-4
            )
        distance = pairwise_distance(x, x)[others]
        extreme = hard_skewed_mean(distance, 1, largest=toward == "farthest")
        soft = PowerMeanRegularizer(toward=toward, measure="distance", t=1e6)(x)
        torch.testing.assert_close(soft, -extreme, rtol=1e-4, atol=0)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 8))
def test_energies_are_functions_of_power_means(seed: int, count: int) -> None:
    x = normalize(make_centers(count, 3, seed), dim=1)
    d = pairwise_distance(x, x)[~torch.eye(count, dtype=torch.bool)]
    torch.testing.assert_close(HypersphericalEnergyRegularizer(s=0)(x), -power_mean(d, 0.0).log())
    torch.testing.assert_close(HypersphericalEnergyRegularizer(s=1)(x), power_mean(d, -1.0) ** -1)
    torch.testing.assert_close(HypersphericalEnergyRegularizer(s=2)(x), power_mean(d, -2.0) ** -2)
    torch.testing.assert_close(UniformFaceRegularizer()(x), 1 / power_mean(d + 1, -1.0))
    torch.testing.assert_close(UniformFaceRegularizer(offset=0.0)(x), 1 / power_mean(d, -1.0))
    # [Skewed], Eq. 10 bounds the harmonic mean from below, which is R2 on distances.
    torch.testing.assert_close(
        PowerMeanRegularizer(toward="nearest", t=1.0)(x), -1 / UniformFaceRegularizer(offset=0.0)(x)
    )


@pytest.mark.parametrize("toward", ["nearest", "farthest"])
@pytest.mark.parametrize("regularizer", [LogMeanExpRegularizer, PowerMeanRegularizer, TopKMeanRegularizer])
@pytest.mark.parametrize("bundle", [0.0, 0.3, 3.0])
def test_default_weight_is_small_against_a_proxy_loss(
    regularizer: type[LogMeanExpRegularizer | PowerMeanRegularizer | TopKMeanRegularizer],
    toward: Literal["nearest", "farthest"],
    bundle: float,
) -> None:
    count = 40
    x = make_centers(count, 16) + bundle * make_centers(1, 16, seed=1) * torch.arange(count)[:, None].remainder(2).mul(
        2
    ).sub(1)
    of_unit = regularizer(toward=toward)
    _, grad = backward(of_unit, normalize(x, dim=1))
    push = of_unit.weight * grad.norm(dim=1).mean()
    assert push <= 2 * of_unit.weight / count  # a pair has two ends, and the pair weights of a center sum to 1
    assert 0 < push <= ProxyAnchorLoss().alpha / count / 50  # alpha / count is the maximum of Proxy-Anchor


DEGENERATE: dict[str, tuple[Tensor, Tensor | None, Tensor | None]] = {
    "none": (make_centers(0), None, None),
    "one center": (make_centers(1), None, None),
    "one class": (make_centers(4), torch.zeros(4, dtype=torch.int64), None),
    "none counted": (make_centers(4), None, torch.zeros(4, dtype=torch.bool)),
    "one counted": (make_centers(4), None, torch.tensor([False, True, False, False])),
}


@every_case
@pytest.mark.parametrize("case", DEGENERATE)
def test_without_pairs_value_and_gradient_are_zero(name: str, section: dict[str, Any], case: str) -> None:
    for more in ({}, {"num_samples": 2}) if name != "none" else ({},):
        value, grad = backward(build(name, section, **more), *DEGENERATE[case])
        assert float(value) == 0
        assert not grad.any()


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_coinciding_opposite_and_zero_centers_have_finite_gradients(
    name: str, section: dict[str, Any], dtype: torch.dtype
) -> None:
    x = make_centers(2).to(dtype)
    for rows in (x[[0, 0]], x[[0, 0, 1]], torch.cat([x, -x]), 0 * x, x[[0, 0]] + torch.tensor([[0.0], [1e-7]])):
        value, grad = backward(build(name, section), rows.to(dtype))
        assert value.isfinite()
        assert grad.isfinite().all()


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_input_is_computed_in_float32(name: str, section: dict[str, Any], dtype: torch.dtype) -> None:
    x = make_centers().to(dtype)
    value, grad = backward(build(name, section), x, LABELS)
    assert value.dtype is torch.float32
    assert torch.equal(value, build(name, section)(x.float(), LABELS))
    assert grad.dtype is dtype
    assert grad.isfinite().all()


@every_case
def test_autocast_changes_nothing_and_float32_is_near_float64(name: str, section: dict[str, Any]) -> None:
    x, regularizer = make_centers().float(), build(name, section)
    plain = regularizer(x, LABELS)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(regularizer(x, LABELS), plain)
    torch.testing.assert_close(plain.double(), regularizer(x.double(), LABELS), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@every_case
def test_compiles_to_one_graph_that_equals_eager(name: str, section: dict[str, Any]) -> None:
    torch._dynamo.reset()
    regularizer = build(name, section)
    compiled = torch.compile(build(name, section), fullgraph=True, backend="aot_eager")
    for results, by_hand in zip(
        backward(compiled, make_centers(), LABELS), backward(regularizer, make_centers(), LABELS), strict=True
    ):
        torch.testing.assert_close(results, by_hand)


@every_case
@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(6)), values=st.permutations([-(2**63), -1, 5, 2**63 - 1]))
def test_order_length_and_label_values_do_not_change_the_value(
    name: str, section: dict[str, Any], order: list[int], values: list[int]
) -> None:
    regularizer, lengths = build(name, section), torch.linspace(0.1, 30, 6)[:, None]
    results = regularizer((make_centers() * lengths)[order], torch.tensor(values)[LABELS][order])
    torch.testing.assert_close(results, regularizer(make_centers(), LABELS))


@pushing
def test_sample_depends_on_the_seed_and_is_unbiased(name: str, section: dict[str, Any]) -> None:
    x, whole, sampled = make_centers(), build(name, section), build(name, section, num_samples=2)
    torch.manual_seed(3)
    first = sampled(x)
    torch.manual_seed(3)
    assert torch.equal(sampled(x), first)
    assert torch.equal(build(name, section, num_samples=6)(x), whole(x))
    draws = torch.stack([sampled(x) for _ in range(60)])
    possible = torch.stack([whole_rows(whole, x, rows) for rows in itertools.combinations(range(6), 2)])
    assert (draws[:, None] - possible).abs().amin(1).max() < 1e-12  # two centers against all
    assert len(draws.unique()) > 3
    if name != "r2":  # the power mean of a sample is biased
        torch.testing.assert_close(possible.mean(), whole(x))


def whole_rows(regularizer: Any, x: Tensor, rows: tuple[int, ...]) -> Tensor:
    unit, chosen = normalize(x, dim=1), torch.tensor(rows)
    value: Tensor = regularizer.penalty(unit[chosen], unit, chosen[:, None] != torch.arange(len(x)))
    return value


def test_class_means_average_unit_embeddings() -> None:
    x, labels = make_centers(), torch.tensor([7, 2, 7, 2, 2, 5])
    means, first = class_means(x, labels)
    assert first.tolist() == [True, True, False, False, False, True]
    for row, label in zip(means, labels, strict=True):
        torch.testing.assert_close(row, normalize(x, dim=1)[labels == label].mean(0))
    assert gradcheck(lambda x: LogMeanExpRegularizer()(*_of_batch(x, labels)), x.requires_grad_())
    by_hand = torch.stack([means[0], means[1], means[5]])
    torch.testing.assert_close(LogMeanExpRegularizer()(means, labels, first), LogMeanExpRegularizer()(by_hand))


def _of_batch(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    means, first = class_means(x, labels)
    return means, labels, first


MISTAKES = {
    "gamma: expected at least 0": {"name": "r1", "gamma": -1.0},
    "t: expected at least 0": {"name": "r2", "t": -1.0},
    "k: expected at least 1": {"name": "hard", "k": 0},
    "offset: expected at least 0": {"name": "uniformface", "offset": -0.5},
    "weight: expected at least 0": {"name": "mhe", "weight": -1.0},
    "num_samples: expected at least 1": {"name": "r1", "num_samples": 0},
    "input should be 'nearest' or 'farthest'": {"name": "r1", "toward": "far"},
    "input should be 0, 1 or 2": {"name": "mhe", "s": 3},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_invalid_settings_raise(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        REGULARIZERS.build(MISTAKES[message])


def test_old_names_of_settings_and_long_names_of_components_load() -> None:
    old = REGULARIZERS.build({"name": "log_mean_exp", "of": "means", "sample": 3})
    assert isinstance(old, LogMeanExpRegularizer)
    assert (old.centers, old.num_samples) == ("means", 3)
    assert [REGULARIZERS.first_name(name) for name in ("power_mean", "top_k_mean")] == ["r2", "hard"]


def test_repr_has_all_settings() -> None:
    for name in REGULARIZERS:
        shown = repr(REGULARIZERS.build(name))
        assert all(f"{one.name}=" in shown for one in REGULARIZERS.parameters(name))


def test_subclass_implements_penalty() -> None:
    class MeanSimilarity(CenterRegularizer):
        """Mean similarity."""

        def __init__(self, *, weight: float = 1.0) -> None:
            super().__init__(centers="auto", num_samples=None, weight=weight)

        def penalty(self, sampled: Tensor, centers: Tensor, pairs: Tensor) -> Tensor:
            return (sampled @ centers.mT)[pairs].mean()

    unit = normalize(make_centers(), dim=1)
    off_diagonal = ~torch.eye(6, dtype=torch.bool)
    torch.testing.assert_close(MeanSimilarity()(make_centers()), (unit @ unit.mT)[off_diagonal].mean())
