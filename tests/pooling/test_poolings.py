"""Every registered pooling against a slow implementation, and the properties that all of them share."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from winnow.errors import DataError
from winnow.pooling import POOLINGS, Pooling

WIDTH = 4


def slow_gap(tokens: np.ndarray, layer: Pooling) -> list[float]:
    return [sum(tokens[:, k]) / len(tokens) for k in range(WIDTH)]


def slow_gmp(tokens: np.ndarray, layer: Pooling) -> list[float]:
    return [max(tokens[:, k]) for k in range(WIDTH)]


def slow_gsp(tokens: np.ndarray, layer: Pooling) -> list[float]:
    """Iterate between the mass left behind and its scale, as Proposition 4.1 does."""

    def clip(vector):
        return vector / max(1.0, math.sqrt(sum(vector**2)))

    n, prototypes = len(tokens), layer.prototypes.detach().double().numpy()
    kernel = np.array([[math.exp(-layer.eps * math.dist(clip(w), clip(f))) for f in tokens] for w in prototypes])
    scale = 1.0
    for _ in range(2000):
        left = 1 / n / (1 + scale * kernel.sum(axis=0))
        scale = layer.mu / (kernel @ left).sum()
    weights = (1 / n - left) / layer.mu
    return [sum(weights * tokens[:, k]) for k in range(WIDTH)]


# Per pooling: the slow implementation for one image, settings small enough to test, and others to try as well.
SLOW: dict[str, tuple[Callable[[np.ndarray, Pooling], list[float]], list[dict]]] = {
    "gap": (slow_gap, [{}]),
    "gmp": (slow_gmp, [{}]),
    "gmp_projected": (slow_gmp, [{}]),
    "gsp": (
        slow_gsp,
        [{"prototypes": 3, "memory": 6}, {"prototypes": 1, "memory": 2, "mu": 0.8, "eps": 2.0}],
    ),
}

every_pooling = pytest.mark.parametrize("name", list(POOLINGS))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pooling(name: str, variant: int = 0) -> Pooling:
    """Build a pooling in double precision, past whatever it has to learn from data, and ready for inference."""
    layer = POOLINGS.build({"name": name, **SLOW[name][1][variant]}, width=WIDTH).double()
    layer(random(16, 5, WIDTH, seed=99))
    return layer.eval()


def test_every_pooling_has_a_slow_reference():
    assert set(SLOW) == set(POOLINGS)


@every_pooling
@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 9), scale=st.sampled_from([0.1, 1.0, 10.0]), seed=st.integers(0, 10**6))
def test_equals_the_slow_implementation(name, count, scale, seed):
    tokens = scale * random(2, count, WIDTH, seed=seed)
    slow, variants = SLOW[name]
    for variant in range(len(variants)):
        layer = pooling(name, variant)
        expected = torch.tensor(np.array([slow(image, layer) for image in tokens.numpy()]))
        torch.testing.assert_close(layer(tokens).detach(), expected, rtol=1e-7, atol=1e-9)


@every_pooling
def test_maps_and_tokens_agree(name):
    layer, maps = pooling(name), random(2, WIDTH, 2, 3)
    tokens = torch.stack([maps[:, :, y, x] for y in range(2) for x in range(3)], dim=1)
    torch.testing.assert_close(layer(maps), layer(tokens))
    torch.testing.assert_close(layer(maps, details=True).weights, layer(tokens, details=True).weights)


@every_pooling
@settings(max_examples=15, deadline=None)
@given(
    kept=st.lists(st.booleans(), min_size=6, max_size=6).filter(any), junk=st.sampled_from([1e6, math.nan, math.inf])
)
def test_masking_is_deletion(name, kept, junk):
    layer, tokens, mask = pooling(name), random(2, 6, WIDTH), torch.tensor(kept)
    spoiled = tokens.clone()
    spoiled[0, ~mask] = junk
    both = torch.stack([mask, torch.ones(6, dtype=torch.bool)])
    masked = layer(spoiled, both, details=True)
    deleted = layer(tokens[:1, mask], details=True)
    torch.testing.assert_close(masked.pooled[:1], deleted.pooled)
    torch.testing.assert_close(masked.pooled[1:], layer(tokens[1:]))
    torch.testing.assert_close(masked.weights[:1, mask], deleted.weights)
    assert not masked.weights[0, ~mask].any()


@every_pooling
def test_masked_features_receive_no_gradient(name):
    tokens, mask = random(2, 6, WIDTH), torch.tensor([[True, False, True, True, False, True]] * 2)
    tokens[~mask] = math.nan
    tokens.requires_grad_()
    pooling(name)(tokens, mask).square().sum().backward()
    assert not tokens.grad[~mask].any()
    assert tokens.grad[mask].isfinite().all()
    assert tokens.grad[mask].any()


@every_pooling
def test_masks_of_maps_may_be_maps(name):
    layer, maps, mask = pooling(name), random(2, WIDTH, 2, 3), random(2, 2, 3) > -0.5
    torch.testing.assert_close(layer(maps, mask), layer(maps, mask.flatten(1)))
    assert not torch.equal(layer(maps, mask), layer(maps))


@every_pooling
@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(6)))
def test_order_of_positions_does_not_matter(name, order):
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    straight, shuffled = layer(tokens, details=True), layer(tokens[:, order], details=True)
    torch.testing.assert_close(shuffled.pooled, straight.pooled)
    torch.testing.assert_close(shuffled.weights, straight.weights[:, order])
    if straight.attributes is not None:
        torch.testing.assert_close(shuffled.attributes, straight.attributes)


@every_pooling
@pytest.mark.parametrize("size", [(3, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_constant_map_pools_to_its_value(name, size, scale):
    value = scale * random(2, WIDTH)
    maps = value[:, :, None, None].expand(2, WIDTH, *size).clone().requires_grad_()
    pooled = pooling(name)(maps)
    torch.testing.assert_close(pooled, value)
    pooled.sum().backward()
    # The value moves as the whole map does.
    torch.testing.assert_close(maps.grad.sum(dim=(2, 3)), torch.ones_like(value))


@every_pooling
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 3000.0])
def test_lower_precision_is_near_double(name, dtype, scale):
    exact, lower = pooling(name), pooling(name).float()
    tokens = (scale * random(2, 49, WIDTH).abs()).to(dtype)
    result = lower(tokens, details=True)
    assert result.pooled.dtype is dtype
    assert result.weights.dtype is torch.float32
    tolerance = 1e-5 if dtype is torch.float32 else 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(result.pooled.double(), exact(tokens.double()), rtol=tolerance, atol=tolerance)


@every_pooling
def test_gradient_is_that_of_finite_differences(name):
    layer = pooling(name)
    mask = torch.tensor([[True] * 5, [True, False, True, True, False]])
    assert torch.autograd.gradcheck(lambda x: layer(x, mask), random(2, 5, WIDTH).requires_grad_())


@every_pooling
def test_inference_changes_no_state(name):
    layer = pooling(name)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    layer(random(20, 5, WIDTH))
    torch.testing.assert_close(dict(layer.state_dict()), before, rtol=0, atol=0)


@every_pooling
def test_details_are_shares(name):
    result = pooling(name)(random(3, 7, WIDTH), details=True)
    assert result.pooled.shape == (3, WIDTH)
    assert result.weights.shape == (3, 7)
    for shares in (result.weights, result.attributes):
        if shares is not None:
            assert (shares >= 0).all()
            torch.testing.assert_close(shares.sum(dim=1), torch.ones(3, dtype=shares.dtype))


def test_max_pooling_shows_where_the_maxima_lie():
    tokens = torch.tensor([[[9.0, 0.0, 0.0, 0.0], [0.0, 8.0, 7.0, 0.0], [0.0, 0.0, 0.0, 6.0]]])
    weights = POOLINGS.build({"name": "gmp"})(tokens, details=True).weights
    assert weights.tolist() == [[0.25, 0.5, 0.25]]


WRONG_MASKS = {
    "not bool": torch.ones(2, 6),
    "too short": torch.ones(2, 5, dtype=torch.bool),
    "of another batch": torch.ones(3, 6, dtype=torch.bool),
    "for one image": torch.ones(6, dtype=torch.bool),
    "on its side": torch.ones(2, 3, 2, dtype=torch.bool),
}


@every_pooling
@pytest.mark.parametrize("case", WRONG_MASKS)
def test_wrong_mask_is_explained(name, case):
    wanted = r"mask must be bool with one value per feature, \(2, 6\) or \(2, 2, 3\), got torch\."
    with pytest.raises(ValueError, match=wanted):
        pooling(name)(random(2, WIDTH, 2, 3), WRONG_MASKS[case])


@every_pooling
def test_fully_masked_image_is_an_error(name):
    mask = torch.tensor([[True, True, False], [False, False, False]])
    with pytest.raises(DataError, match="every feature of image 1 of the batch is masked"):
        pooling(name)(random(2, 3, WIDTH), mask)


@every_pooling
@pytest.mark.parametrize("shape", [(WIDTH,), (5, WIDTH), (1, 2, WIDTH, 3, 3)], ids=str)
def test_wrong_rank_is_explained(name, shape):
    with pytest.raises(ValueError, match=r"expected a map \(B, C, H, W\) or tokens \(B, N, C\)"):
        pooling(name)(random(*shape))


@every_pooling
def test_compiles_to_one_graph_that_equals_eager(name):
    torch._dynamo.reset()
    layer = pooling(name)
    mask = torch.tensor([[True] * 5, [True, False, True, True, False]])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(random(2, 5, WIDTH), mask), layer(random(2, 5, WIDTH), mask))
