"""GSP at the limits of its parameters, on degenerate inputs, and on invalid inputs."""

from __future__ import annotations

import math

import pytest
import torch
from gsp_oracles import distinct_costs, random_problem
from torch import Tensor

from winnow.errors import DataError
from winnow.functional import gsp, gsp_weights, soft_selection

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def nearest_distance(features: Tensor, prototypes: Tensor) -> Tensor:
    """(B, n) distance of each feature to its nearest prototype, both clipped to length one."""
    f, w = (x / x.norm(dim=-1, keepdim=True).clamp(min=1) for x in (features, prototypes))
    return (f[:, :, None] - w).norm(dim=-1).amin(dim=-1)


@pytest.mark.parametrize("eps", [0.0, 5.0, 1e4])
def test_mu_one_is_average_pooling(eps: float) -> None:
    features, prototypes = random_problem(0, n=7)
    out = gsp(features, prototypes, 1.0, eps)
    assert (out.weights == 1 / 7).all()
    torch.testing.assert_close(out.vector, features.mean(dim=1), rtol=1e-14, atol=1e-15)
    mask = torch.tensor([[True] * 3 + [False] * 4, [False] + [True] * 6])
    out = gsp(features, prototypes, 1.0, eps, mask)
    torch.testing.assert_close(out.vector[0], features[0, :3].mean(dim=0), rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(out.vector[1], features[1, 1:].mean(dim=0), rtol=1e-14, atol=1e-15)


def test_mu_one_spreads_each_feature_over_the_prototypes() -> None:
    """There rho = 0 and pi_ij = softmax_i(-eps c_ij) / n."""
    costs = torch.from_numpy(distinct_costs(1, m=3, n=5))
    kernel = torch.exp(-4 * costs)
    attributes = gsp_weights(costs[None], 1.0, 4.0).attributes[0]
    torch.testing.assert_close(attributes, (kernel / kernel.sum(0)).mean(1))


def test_mu_one_weights_do_not_move_with_the_costs() -> None:
    costs = torch.from_numpy(distinct_costs(1, m=3, n=5))[None]
    moves = torch.autograd.functional.jacobian(lambda c: gsp_weights(c, 1.0, 5.0).weights, costs)
    assert (moves == 0).all()


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0])
def test_eps_zero_is_average_pooling(mu: float) -> None:
    features, prototypes = random_problem(2, n=7, m=4)
    out = gsp(features, prototypes, mu, 0.0)
    torch.testing.assert_close(out.weights, torch.full_like(out.weights, 1 / 7), rtol=1e-14, atol=0)
    torch.testing.assert_close(out.attributes, torch.full_like(out.attributes, 1 / 4), rtol=1e-14, atol=0)


@BOTH
@pytest.mark.parametrize("k", [1, 3, 6, 9])
def test_large_eps_keeps_the_nearest_features(k: int, dtype: torch.dtype) -> None:
    features, prototypes = random_problem(3, n=10, dtype=dtype)
    nearest = nearest_distance(features, prototypes).sort(dim=1)
    assert nearest.values.diff(dim=1).min() > 2e-3  # far apart in units of 1 / eps
    expected = torch.zeros(2, 10, dtype=dtype).scatter_(1, nearest.indices[:, :k], 1 / k)
    out = gsp(features, prototypes, k / 10, 1e4)
    torch.testing.assert_close(out.weights, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.vector, (expected[:, None] @ features)[:, 0], rtol=1e-5, atol=1e-5)


def test_large_eps_keeps_part_of_the_last_feature() -> None:
    """With mu = 0.37 and ten features, the three nearest are kept, and 0.7 of the fourth."""
    features, prototypes = random_problem(3, n=10)
    order = nearest_distance(features, prototypes).argsort(dim=1)
    weights = gsp(features, prototypes, 0.37, 1e4).weights
    expected = torch.tensor([1, 1, 1, 0.7, 0, 0, 0, 0, 0, 0], dtype=torch.float64) / 3.7
    torch.testing.assert_close(weights.gather(1, order), expected.expand(2, 10), rtol=0, atol=1e-8)


@BOTH
@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.1, 1.0, 5.0, 20.0, 100.0, 1e3, 1e4])
def test_everything_is_finite(eps: float, dtype: torch.dtype) -> None:
    """All mu at once, with coincident, equal, zero and long vectors among the features."""
    features, prototypes = random_problem(4, batch=9, n=10, dtype=dtype)
    features[:, 0] = prototypes[0]
    features[:, 1] = features[:, 2]
    features[:, 3] = 0
    features[:, 4] *= 1e3
    mu = torch.tensor([0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.95, 0.999, 1.0], dtype=dtype)
    inputs = [features, prototypes, mu, torch.tensor(eps, dtype=dtype)]
    for x in inputs:
        x.requires_grad_()
    out = gsp(*inputs)
    (out.vector.square().sum() + out.attributes.square().sum() + out.weights.square().sum()).backward()
    for value in (*out, *(x.grad for x in inputs)):
        assert value.isfinite().all()
    for fractions in out[1:]:
        torch.testing.assert_close(fractions.sum(1), torch.ones(9, dtype=dtype))


@BOTH
@pytest.mark.parametrize("eps", [1e3, 1e4])
@pytest.mark.parametrize("k", [2, 5])
def test_plateau(k: int, eps: float, dtype: torch.dtype) -> None:
    """For integer n mu and a large eps, the weights are constant, and more mu adds the next feature."""
    costs = torch.from_numpy(distinct_costs(5, m=2, n=8)).to(dtype)[None]
    order = costs[0].amin(0).argsort()
    mu = torch.tensor(k / 8, dtype=dtype)
    weights = gsp_weights(costs, mu, eps).weights[0]
    expected = torch.zeros(8, dtype=dtype).index_fill(0, order[:k], 1 / k)
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-8)
    by_mu = torch.autograd.functional.jacobian(lambda mu: gsp_weights(costs, mu, eps).weights[0], mu)
    # dp/dmu = (u - p) / mu, with u the fractions in which further mass comes from the features.
    u = mu * by_mu + weights
    assert (u > -1e-5).all()
    torch.testing.assert_close(u[order[k - 1 : k + 1]].sum(), mu.new_ones(()), rtol=1e-5, atol=1e-5)
    by_costs = torch.autograd.functional.jacobian(lambda c: gsp_weights(c, mu, eps).weights[0], costs)
    assert by_costs.abs().max() < 1e-2


@BOTH
def test_a_feature_on_a_prototype(dtype: torch.dtype) -> None:
    """Every feature lies on some prototype: the distance there has gradient zero, not NaN."""
    _, prototypes = random_problem(6, m=4, dtype=dtype)
    features = prototypes[[0, 1, 1, 3, 2]][None].clone().requires_grad_()
    prototypes.requires_grad_()
    out = gsp(features, prototypes, 0.4, 5.0)
    (out.vector.square().sum() + out.attributes.square().sum()).backward()
    assert features.grad.isfinite().all()
    assert prototypes.grad.isfinite().all()
    assert prototypes.grad.abs().max() < 10


@BOTH
@pytest.mark.parametrize("eps", [0.5, 20.0, 1e4])
@pytest.mark.parametrize("mu", [0.01, 0.3, 0.5, 0.99])
def test_equal_features_have_equal_weights(mu: float, eps: float, dtype: torch.dtype) -> None:
    features, prototypes = random_problem(7, n=1, dtype=dtype)
    out = gsp(features.expand(2, 6, 4), prototypes, mu, eps)
    torch.testing.assert_close(out.weights, torch.full((2, 6), 1 / 6, dtype=dtype))
    torch.testing.assert_close(out.vector, features[:, 0])


@pytest.mark.parametrize("mu", [0.01, 0.5, 1.0])
def test_a_single_feature_is_the_vector(mu: float) -> None:
    features, prototypes = random_problem(8, n=1)
    out = gsp(features, prototypes, mu, 5.0)
    torch.testing.assert_close(out.vector, features[:, 0], rtol=1e-15, atol=0)
    torch.testing.assert_close(out.weights, torch.ones(2, 1, dtype=torch.float64), rtol=1e-15, atol=0)


def test_a_single_prototype_has_attribute_one() -> None:
    features, prototypes = random_problem(9, m=1)
    out = gsp(features, prototypes, 0.3, 5.0)
    torch.testing.assert_close(out.attributes, torch.ones(2, 1, dtype=torch.float64), rtol=1e-14, atol=0)
    assert out.weights.std() > 1e-3


def test_soft_selection_of_extreme_scores() -> None:
    """Scores that are 1e5 apart, where sigmoids and slopes are exactly 0 or 1."""
    scores = torch.tensor([[0.0, 1e5, -1e5, 5e4]], dtype=torch.float64)
    expected = torch.tensor([[0.0, 1.0, 0.0, 0.2]], dtype=torch.float64) / 1.2
    torch.testing.assert_close(soft_selection(scores, 0.3), expected, rtol=0, atol=1e-10)


def test_a_fully_masked_image_is_an_error_that_names_it() -> None:
    features, prototypes = random_problem(10, batch=3)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[2] = False
    for mu in (0.3, 1.0):
        with pytest.raises(DataError, match="image 2 of the batch is masked"):
            gsp(features, prototypes, mu, 5.0, mask)


@pytest.mark.parametrize("mu", [0.0, -0.1, 1.01, math.nan, math.inf])
def test_mu_out_of_range(mu: float) -> None:
    features, prototypes = random_problem(11)
    for value in (mu, torch.tensor(mu), torch.tensor([0.3, mu])):
        with pytest.raises(ValueError, match=r"mu: expected .* in \(0, 1\], got"):
            gsp(features, prototypes, value, 5.0)


@pytest.mark.parametrize("eps", [-0.1, math.nan, math.inf])
def test_eps_out_of_range(eps: float) -> None:
    features, prototypes = random_problem(11)
    with pytest.raises(ValueError, match=f"eps: expected a finite number of at least 0, got {eps}"):
        gsp(features, prototypes, 0.3, eps)


def test_mu_and_eps_of_the_wrong_size() -> None:
    features, prototypes = random_problem(11)
    with pytest.raises(ValueError, match=r"mu: expected one number or 2, one per image, got shape \(3,\)"):
        gsp(features, prototypes, torch.full((3,), 0.3), 5.0)
    with pytest.raises(ValueError, match=r"eps: expected one number, got shape \(2,\)"):
        gsp(features, prototypes, 0.3, torch.ones(2))


@pytest.mark.parametrize(
    ("features", "prototypes", "mask", "message"),
    [
        ((5, 4), (3, 4), None, r"features: expected shape \(B, n, 4\), got \(5, 4\). Add .* features\[None\]"),
        ((2, 4, 3, 5), (3, 4), None, r"got \(2, 4, 3, 5\). Flatten the map: features.flatten\(2\).mT"),
        ((2, 3, 5, 4), (3, 4), None, r"looks like a channels-last map .* features.flatten\(1, 2\)"),
        ((2, 3, 5, 6), (3, 4), None, r"expected shape \(B, n, 4\), got \(2, 3, 5, 6\).$"),
        ((2, 4, 5), (3, 4), None, r"looks like \(B, 4, n\): pass features.mT"),
        ((2, 5, 4), (3, 6), None, r"prototypes: expected shape \(m, 4\) to match features, got \(3, 6\)"),
        ((2, 5, 4), (4, 3), None, r"prototypes: expected shape \(m, 4\) .* got \(4, 3\). Pass prototypes.mT"),
        ((2, 5, 4), (4,), None, r"prototypes: expected shape \(m, d\), got \(4,\)"),
        ((2, 5, 4), (0, 4), None, r"m at least 1.* got \(0, 4\)"),
        (
            (2, 5, 4),
            (3, 4),
            torch.ones(2, 4, dtype=torch.bool),
            r"mask: expected a bool tensor .*\(2, 5\).*\(2, 4\)",
        ),
        ((2, 5, 4), (3, 4), torch.ones(2, 5), r"mask: expected a bool tensor of shape \(2, 5\), got torch.float32"),
    ],
)
def test_wrong_shapes_raise(
    features: tuple[int, ...], prototypes: tuple[int, ...], mask: Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gsp(torch.zeros(features), torch.zeros(prototypes), 0.3, 5.0, mask)
