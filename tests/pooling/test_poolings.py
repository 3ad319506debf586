"""Every registered pooling against a slow implementation, and the properties that all of them share."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.pooling.slow_poolings import SLOW, Scene
from winnow.errors import ConfigError, DataError
from winnow.functional import Pooled
from winnow.pooling import POOLINGS, Pooling, PrototypePooling
from winnow.pooling.batch_norm import TokenNorm

WIDTH, DIM = 4, 3
GRID = (2, 3)

every_pooling = pytest.mark.parametrize("name", list(POOLINGS))


def of(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for name in POOLINGS if POOLINGS[name].takes == kind])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def project(tokens: Tensor) -> Tensor:
    return tokens @ (0.7 * random(WIDTH, DIM, seed=5)).to(tokens.dtype)


def call(layer: nn.Module, tokens: Tensor, mask: Tensor | None = None, grid: tuple[int, int] = GRID) -> Pooled:
    """Give a pooling what it takes: tokens, or the map (h, w) that they are; and what guides it."""
    features = tokens.mT.unflatten(2, grid) if layer.takes == "grid" else tokens
    guide = project(tokens) if layer.guided else None
    return layer(features, mask, guide=guide, details=True)


def pooling(name: str, variant: int = 0) -> Pooling:
    """Build a pooling in double precision, past whatever it has to learn from data, and ready for inference."""
    context = {"width": WIDTH, "dim": DIM, "positions": GRID[0] * GRID[1]}
    torch.manual_seed(variant)
    layer = POOLINGS.build({"name": name, **SLOW[name][1][variant]}, **context).double()
    generator = torch.Generator().manual_seed(7)
    for parameter in layer.parameters():  # what starts at zero would hide what it multiplies
        if not parameter.any():
            parameter.data.normal_(generator=generator).mul_(0.5)
    call(layer, random(16, 6, WIDTH, seed=99))
    if isinstance(layer, PrototypePooling):
        assert layer.is_ready
        layer.prototypes.data.mul_(1.1)  # some were of length 1, where clipping has a kink
    return layer.eval()


def slow(name: str, layer: Pooling, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    images = zip(tokens.numpy(), project(tokens).numpy(), strict=True)
    return torch.tensor(np.array([SLOW[name][0](Scene(image, grid, guide), layer) for image, guide in images]))


def test_every_pooling_has_a_slow_reference():
    assert set(SLOW) == set(POOLINGS)


@every_pooling
def test_every_preset_is_compared_too(name):
    assert set(POOLINGS.presets(name)) == {variant.get("preset") for variant in SLOW[name][1]} - {None}


@every_pooling
@settings(max_examples=12, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    seed=st.integers(0, 10**6),
)
def test_equals_the_slow_implementation(name, grid, scale, seed):
    grid = GRID if POOLINGS[name].takes == "fixed" else grid
    tokens = scale * random(2, grid[0] * grid[1], WIDTH, seed=seed)
    for variant in range(len(SLOW[name][1])):
        layer = pooling(name, variant)
        found = call(layer, tokens, grid=grid).pooled.detach()
        torch.testing.assert_close(found, slow(name, layer, tokens, grid), rtol=1e-7, atol=1e-9)


@every_pooling
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("size", [(3, 2), (1, 1)], ids=str)
def test_constant_maps(name, size, scale):
    grid = GRID if POOLINGS[name].takes == "fixed" else size
    tokens = (scale * random(2, 1, WIDTH)).expand(2, grid[0] * grid[1], WIDTH).clone().requires_grad_()
    layer = pooling(name)
    result = call(layer, tokens, grid=grid)
    torch.testing.assert_close(result.pooled.detach(), slow(name, layer, tokens.detach(), grid), rtol=1e-6, atol=1e-9)
    if result.weights is not None and name not in ("gmp", "gmp_projected", "gap_gmp", "weldon", "gmp_gsp", "gsop"):
        # Places that look alike weigh alike: where no tie has to be broken, and no place is known by its number.
        edge = name == "cbam"  # it sees the border of the map
        assert edge or torch.allclose(result.weights, torch.full_like(result.weights, 1 / tokens.shape[1]))
    result.pooled.sum().backward()
    assert tokens.grad.isfinite().all()


KEEP_VALUES = ["gap", "gmp", "gmp_projected", "gsp"]


@pytest.mark.parametrize("name", KEEP_VALUES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_averages_and_maxima_of_a_constant_map_are_its_value(name, scale):
    value = scale * random(2, WIDTH)
    maps = value[:, :, None, None].expand(2, WIDTH, 3, 2).clone().requires_grad_()
    pooled = pooling(name)(maps)
    torch.testing.assert_close(pooled, value)
    pooled.sum().backward()
    # The value moves as the whole map does.
    torch.testing.assert_close(maps.grad.sum(dim=(2, 3)), torch.ones_like(value))


@pytest.mark.parametrize("name", [name for name in POOLINGS if POOLINGS[name].takes != "grid"])
def test_maps_and_tokens_agree(name):
    layer, maps = pooling(name), random(2, WIDTH, *GRID)
    tokens = torch.stack([maps[:, :, y, x] for y in range(2) for x in range(3)], dim=1)
    guide = project(tokens) if layer.guided else None
    of_map, of_tokens = (layer(x, guide=guide, details=True) for x in (maps, tokens))
    torch.testing.assert_close(of_map, of_tokens)


@of("set")
@settings(max_examples=12, deadline=None)
@given(
    kept=st.lists(st.booleans(), min_size=6, max_size=6).filter(any), junk=st.sampled_from([1e6, math.nan, math.inf])
)
def test_masking_is_deletion(name, kept, junk):
    layer, tokens, mask = pooling(name), random(2, 6, WIDTH), torch.tensor(kept)
    spoiled = tokens.clone()
    spoiled[0, ~mask] = junk
    both = torch.stack([mask, torch.ones(6, dtype=torch.bool)])
    masked = call(layer, spoiled, both)
    deleted = call(layer, tokens[:1, mask])
    torch.testing.assert_close(masked.pooled[:1], deleted.pooled)
    torch.testing.assert_close(masked.pooled[1:], call(layer, tokens[1:]).pooled)
    if masked.weights is not None:
        torch.testing.assert_close(masked.weights[:1, mask], deleted.weights)
        assert not masked.weights[0, ~mask].any()


@of("grid")
@pytest.mark.parametrize("size", [(2, 2), (1, 3), (3, 1)], ids=str)
def test_masking_the_rest_of_a_grid_is_cropping(name, size):
    layer, maps = pooling(name), random(1, WIDTH, 3, 4)
    mask = torch.zeros(1, 3, 4, dtype=torch.bool)
    mask[:, : size[0], : size[1]] = True
    cropped = layer(maps[:, :, : size[0], : size[1]], details=True)
    masked = layer(torch.where(mask[:, None], maps, math.nan), mask, details=True)
    torch.testing.assert_close(masked.pooled, cropped.pooled)
    torch.testing.assert_close(masked.weights[mask.flatten(1)], cropped.weights[0])
    assert not masked.weights[~mask.flatten(1)].any()


@every_pooling
def test_masked_features_receive_no_gradient(name):
    tokens, mask = random(2, 6, WIDTH), torch.tensor([[True, False, True, True, False, True]] * 2)
    tokens[~mask] = math.nan
    tokens.requires_grad_()
    call(pooling(name), tokens, mask).pooled.square().sum().backward()
    assert not tokens.grad[~mask].any()
    assert tokens.grad[mask].isfinite().all()
    assert tokens.grad[mask].any()


@every_pooling
def test_masks_of_maps_may_be_maps(name):
    layer, maps, mask = pooling(name), random(2, WIDTH, *GRID), random(2, *GRID) > -0.5
    guide = project(maps.flatten(2).mT) if layer.guided else None
    torch.testing.assert_close(layer(maps, mask, guide=guide), layer(maps, mask.flatten(1), guide=guide))
    assert not torch.equal(layer(maps, mask, guide=guide), layer(maps, guide=guide))


@of("set")
@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(6)))
def test_order_of_positions_does_not_matter(name, order):
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    straight, shuffled = call(layer, tokens), call(layer, tokens[:, order])
    torch.testing.assert_close(shuffled.pooled, straight.pooled)
    if straight.weights is not None:
        torch.testing.assert_close(shuffled.weights, straight.weights[:, order])
    if straight.attributes is not None:
        torch.testing.assert_close(shuffled.attributes, straight.attributes)


@pytest.mark.parametrize("name", [name for name in POOLINGS if POOLINGS[name].takes != "set"])
def test_order_matters_to_what_is_no_set(name):
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    assert not torch.allclose(call(layer, tokens.flip(1)).pooled, call(layer, tokens.roll(1, 1)).pooled)


@every_pooling
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 3000.0])
def test_lower_precision_is_near_double(name, dtype, scale):
    exact, lower = pooling(name), pooling(name).float()
    tokens = (scale * random(2, 6, WIDTH).abs()).to(dtype)
    guide = project(tokens.double()) if exact.guided else None
    shaped = tokens.mT.unflatten(2, GRID) if exact.takes == "grid" else tokens
    result = lower(shaped, guide=None if guide is None else guide.float(), details=True)
    expected = exact(shaped.double(), guide=guide)
    assert result.pooled.dtype is dtype
    if result.weights is not None:
        assert result.weights.dtype is torch.float32
    tolerance = 3e-5 if dtype is torch.float32 else 2 * torch.finfo(dtype).eps
    reachable = expected.abs() < torch.finfo(dtype).max
    torch.testing.assert_close(result.pooled.double()[reachable], expected[reachable], rtol=tolerance, atol=tolerance)


@every_pooling
def test_layers_in_half_precision_work(name):
    layer, tokens = pooling(name), random(2, 6, WIDTH).abs().bfloat16()
    exact = call(layer, tokens.double()).pooled
    found = call(layer.bfloat16(), tokens)
    assert found.pooled.dtype is torch.bfloat16
    torch.testing.assert_close(found.pooled.double(), exact, rtol=0.1, atol=0.1)


@every_pooling
def test_autocast_changes_nothing(name):
    layer, tokens = pooling(name).float(), random(2, 6, WIDTH).float()
    expected = call(layer, tokens)
    guide = project(tokens) if layer.guided else None
    shaped = tokens.mT.unflatten(2, GRID) if layer.takes == "grid" else tokens
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(shaped, guide=guide, details=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@every_pooling
def test_gradient_is_that_of_finite_differences(name):
    layer = pooling(name)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    names, values = zip(*layer.named_parameters(), strict=True) if list(layer.parameters()) else ((), ())

    def pooled(tokens: Tensor, *parameters: Tensor) -> Tensor:
        shaped = tokens.mT.unflatten(2, GRID) if layer.takes == "grid" else tokens
        extra = {"guide": project(tokens) if layer.guided else None}
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (shaped, mask), extra)

    inputs = (random(2, 6, WIDTH), *(value.detach().clone() for value in values))
    assert torch.autograd.gradcheck(pooled, [x.requires_grad_() for x in inputs])


@every_pooling
def test_inference_changes_no_state(name):
    layer = pooling(name)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    call(layer, random(20, 6, WIDTH))
    torch.testing.assert_close(dict(layer.state_dict()), before, rtol=0, atol=0)


@every_pooling
def test_details_are_shares(name):
    layer = pooling(name)
    result = call(layer, random(3, 6, WIDTH))
    assert result.pooled.shape == (3, layer.output_width(WIDTH))
    assert (result.weights is not None) is layer.has_weights
    assert (result.attributes is not None) is layer.has_attributes
    for shares in (result.weights, result.attributes):
        if shares is not None:
            assert shares.shape[0] == 3
            assert (shares >= 0).all()
            torch.testing.assert_close(shares.sum(dim=1), torch.ones(3, dtype=shares.dtype))
    assert result.weights is None or result.weights.shape == (3, 6)


@pytest.mark.parametrize("name", ["gmp", "gap_gmp", "crow", "gemean", "tsmk", "gsp", "gmp_gsp", "gemean_gsp"])
def test_weights_show_the_place_that_stands_out(name):
    layer, tokens = pooling(name), 0.1 * random(1, 6, WIDTH).abs()
    tokens[0, 4] = 3.0
    if isinstance(layer, PrototypePooling):  # what stands out to it is what is near its prototypes
        like = torch.ones(WIDTH, dtype=torch.float64) * 3
        layer.prototypes.data.copy_((like if not layer.guided else project(like[None])[0]).expand_as(layer.prototypes))
    assert call(layer, tokens).weights.argmax() == 4


def test_generalized_max_pooling_weighs_repeated_features_down():
    tokens = torch.tensor([[[2.0, 0.0]] * 5 + [[0.0, 2.0]]])
    weights = POOLINGS.build({"name": "gemax"})(tokens, details=True).weights[0]
    # Five times 1 / (1 + 20), against once 1 / (1 + 4).
    torch.testing.assert_close(weights, torch.tensor([1 / 21] * 5 + [1 / 5]) / (5 / 21 + 1 / 5))


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
        pooling(name)(random(2, WIDTH, *GRID), WRONG_MASKS[case])


@every_pooling
def test_fully_masked_image_is_an_error(name):
    mask = torch.tensor([[True] * 5 + [False], [False] * 6])
    with pytest.raises(DataError, match="every feature of image 1 of the batch is masked"):
        call(pooling(name), random(2, 6, WIDTH), mask)


@every_pooling
@pytest.mark.parametrize("shape", [(WIDTH,), (5, WIDTH), (1, 2, WIDTH, 3, 3)], ids=str)
def test_wrong_rank_is_explained(name, shape):
    with pytest.raises(ValueError, match=r"expected a map \(B, C, H, W\) or tokens \(B, N, C\)"):
        pooling(name)(random(*shape))


@of("grid")
def test_what_needs_a_grid_refuses_tokens(name):
    with pytest.raises(
        ValueError, match=r"needs a map \(B, C, H, W\), whose rows and columns it knows, and got tokens"
    ):
        pooling(name)(random(2, 6, WIDTH))


@of("fixed")
def test_what_takes_one_number_of_features_refuses_others(name):
    with pytest.raises(ValueError, match="made for 6 local features an image and got 5"):
        pooling(name)(random(2, 5, WIDTH))


@every_pooling
def test_a_guide_is_given_to_those_that_are_guided(name):
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    if layer.guided:
        with pytest.raises(ValueError, match="give them as guide="):
            layer(tokens)
    elif layer.takes == "set":
        with pytest.raises(ValueError, match="takes no guide"):
            layer(tokens, guide=tokens)


@every_pooling
def test_compiles_to_one_graph_that_equals_eager(name):
    torch._dynamo.reset()
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    guide = {"guide": project(tokens)} if layer.guided else {}
    shaped = tokens.mT.unflatten(2, GRID) if layer.takes == "grid" else tokens
    torch.testing.assert_close(compiled(shaped, mask, **guide), layer(shaped, mask, **guide))


@every_pooling
def test_exported_program_equals_eager(name):
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    guide = {"guide": project(tokens)} if layer.guided else {}
    shaped = tokens.mT.unflatten(2, GRID) if layer.takes == "grid" else tokens
    with torch.no_grad():
        exported = torch.export.export(layer, (shaped, mask), guide, strict=False).module()
        torch.testing.assert_close(exported(shaped, mask, **guide), layer(shaped, mask, **guide))


@pytest.mark.parametrize("name", ["netvlad", "otp"])
def test_vectors_of_parts_have_the_size_of_the_embedding(name):
    settings = POOLINGS.resolve(name)
    assert POOLINGS[name].local_width(128, settings) == 16  # the documents' 8x16
    count = "clusters" if name == "netvlad" else "prototypes"
    assert POOLINGS[name].local_width(8192, {**settings.model_dump(), count: 64}) == 128
    assert POOLINGS.build({"name": name}, width=16).output_width(16) == 128
    with pytest.raises(ConfigError, match=rf"8 equal parts, which 130 is no multiple of: set dim or pooling.{count}"):
        POOLINGS[name].local_width(130, settings)


REFUSED = {
    "cbam": [{"reduction": 0}, {"kernel": 4}],
    "delf": [{"hidden": 0}],
    "gemax": [{"ridge": 0.0}],
    "gemean": [{"p": 0.0}],
    "gsop": [{"attention": 0}],
    "otp": [{"prototypes": 0}, {"eps": -1.0}, {"steps": 0}, {"memory": 3}],
    "solar": [{"reduction": 0}, {"p": -1.0}],
    "netvlad": [{"clusters": 0}],
    "weldon": [{"largest": 0}, {"smallest": 0}],
    "gmp_gsp": [{"mu": 0.0}, {"eps": -1.0}, {"memory": 3}],
    "gemean_gsp": [{"mu": 1.5}, {"p": 0.0}],
}


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name in REFUSED for wrong in REFUSED[name]], ids=str)
def test_impossible_settings_are_refused(name, wrong):
    with pytest.raises(ConfigError, match=f"pooling '{name}': .* got "):
        POOLINGS.build({"name": name, **wrong}, width=WIDTH, dim=DIM, positions=6)


def test_token_norm_is_batch_norm_of_the_features_that_count():
    ours, theirs = TokenNorm(WIDTH).double(), nn.BatchNorm1d(WIDTH).double()
    for seed in range(3):
        x, mask = 2 + random(5, 6, WIDTH, seed=seed), random(5, 6, seed=10 + seed) > -0.5
        torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    x = random(5, 6, WIDTH)
    torch.testing.assert_close(ours(x).flatten(0, 1), theirs(x.flatten(0, 1)))
    torch.testing.assert_close(ours.eval()(x).flatten(0, 1), theirs.eval()(x.flatten(0, 1)))
