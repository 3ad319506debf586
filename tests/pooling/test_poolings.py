"""Tests of all poolings: comparison with slow references, shared invariants."""

import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.pooling.slow_poolings import SLOW, Scene
from winnow.errors import ConfigError, DataError
from winnow.functional import PoolingOutput
from winnow.pooling import POOLINGS, MaskedBatchNorm, Pooling, PrototypePooling

WIDTH, DIM = 4, 3
GRID = (2, 3)

every_pooling = pytest.mark.parametrize("name", list(POOLINGS))


def of(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for name in POOLINGS if POOLINGS[name].layout == kind])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def project(tokens: Tensor) -> Tensor:
    return tokens @ (0.7 * random(WIDTH, DIM, seed=5)).to(tokens.dtype)


def call(layer: nn.Module, tokens: Tensor, mask: Tensor | None = None, grid: tuple[int, int] = GRID) -> PoolingOutput:
    """Call a pooling with tokens, or as a map (h, w), and with a guide if needed."""
    features = tokens.mT.unflatten(2, grid) if layer.layout == "grid" else tokens
    guide = project(tokens) if layer.needs_guide else None
    return layer(features, mask, guide=guide, return_details=True)


def pooling(name: str, variant: int = 0) -> Pooling:
    """Build a pooling in float64 with prototypes set from data, in evaluation mode."""
    context = {"in_features": WIDTH, "dim": DIM, "positions": GRID[0] * GRID[1]}
    torch.manual_seed(variant)
    layer = POOLINGS.build({"name": name, **SLOW[name][1][variant]}, **context).double()
    generator = torch.Generator().manual_seed(7)
    for parameter in layer.parameters():  # zeros would hide the terms they multiply
        if not parameter.any():
            parameter.data.normal_(generator=generator).mul_(0.5)
    call(layer, random(16, 6, WIDTH, seed=99))
    if isinstance(layer, PrototypePooling):
        assert layer.prototypes_ready
        layer.prototypes.data.mul_(1.1)  # clipping is not differentiable at length 1
    return layer.eval()


def slow(name: str, layer: Pooling, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    images = zip(tokens.numpy(), project(tokens).numpy(), strict=True)
    return torch.tensor(np.array([SLOW[name][0](Scene(image, grid, guide), layer) for image, guide in images]))


def test_every_pooling_has_a_slow_reference():
    assert set(SLOW) == set(POOLINGS)


@every_pooling
def test_every_preset_has_a_slow_reference(name):
    assert set(POOLINGS.presets(name)) == {variant.get("preset") for variant in SLOW[name][1]} - {None}


@every_pooling
@settings(max_examples=12, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    seed=st.integers(0, 10**6),
)
def test_equals_the_slow_implementation(name, grid, scale, seed):
    grid = GRID if POOLINGS[name].layout == "fixed" else grid
    tokens = scale * random(2, grid[0] * grid[1], WIDTH, seed=seed)
    for variant in range(len(SLOW[name][1])):
        layer = pooling(name, variant)
        found = call(layer, tokens, grid=grid).vector.detach()
        torch.testing.assert_close(found, slow(name, layer, tokens, grid), rtol=1e-7, atol=1e-9)


@every_pooling
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
@pytest.mark.parametrize("size", [(3, 2), (1, 1)], ids=str)
def test_constant_maps(name, size, scale):
    grid = GRID if POOLINGS[name].layout == "fixed" else size
    tokens = (scale * random(2, 1, WIDTH)).expand(2, grid[0] * grid[1], WIDTH).clone().requires_grad_()
    layer = pooling(name)
    result = call(layer, tokens, grid=grid)
    torch.testing.assert_close(result.vector.detach(), slow(name, layer, tokens.detach(), grid), rtol=1e-6, atol=1e-9)
    if result.weights is not None and name not in ("gmp", "gmp_projected", "gap_gmp", "weldon", "gmp_gsp", "gsop"):
        # Equal features have equal weights, except with ties and with weights per position.
        edge = name == "cbam"  # its convolution depends on the border of the map
        assert edge or torch.allclose(result.weights, torch.full_like(result.weights, 1 / tokens.shape[1]))
    result.vector.sum().backward()
    assert tokens.grad.isfinite().all()


VALUE_PRESERVING = ["gap", "gmp", "gmp_projected", "gsp"]


@pytest.mark.parametrize("name", VALUE_PRESERVING)
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_averages_and_maxima_of_a_constant_map_are_its_value(name, scale):
    value = scale * random(2, WIDTH)
    maps = value[:, :, None, None].expand(2, WIDTH, 3, 2).clone().requires_grad_()
    pooled = pooling(name)(maps)
    torch.testing.assert_close(pooled, value)
    pooled.sum().backward()
    torch.testing.assert_close(maps.grad.sum(dim=(2, 3)), torch.ones_like(value))


@pytest.mark.parametrize("name", [name for name in POOLINGS if POOLINGS[name].layout != "grid"])
def test_maps_and_tokens_agree(name):
    layer, maps = pooling(name), random(2, WIDTH, *GRID)
    tokens = torch.stack([maps[:, :, y, x] for y in range(2) for x in range(3)], dim=1)
    guide = project(tokens) if layer.needs_guide else None
    of_map, of_tokens = (layer(x, guide=guide, return_details=True) for x in (maps, tokens))
    torch.testing.assert_close(of_map, of_tokens)


@of("set")
@settings(max_examples=12, deadline=None)
@given(
    unmasked=st.lists(st.booleans(), min_size=6, max_size=6).filter(any),
    junk=st.sampled_from([1e6, math.nan, math.inf]),
)
def test_masking_is_deletion(name, unmasked, junk):
    layer, tokens, mask = pooling(name), random(2, 6, WIDTH), torch.tensor(unmasked)
    spoiled = tokens.clone()
    spoiled[0, ~mask] = junk
    both = torch.stack([mask, torch.ones(6, dtype=torch.bool)])
    masked = call(layer, spoiled, both)
    deleted = call(layer, tokens[:1, mask])
    torch.testing.assert_close(masked.vector[:1], deleted.vector)
    torch.testing.assert_close(masked.vector[1:], call(layer, tokens[1:]).vector)
    if masked.weights is not None:
        torch.testing.assert_close(masked.weights[:1, mask], deleted.weights)
        assert not masked.weights[0, ~mask].any()


@of("grid")
@pytest.mark.parametrize("size", [(2, 2), (1, 3), (3, 1)], ids=str)
def test_masking_the_rest_of_a_grid_is_cropping(name, size):
    layer, maps = pooling(name), random(1, WIDTH, 3, 4)
    mask = torch.zeros(1, 3, 4, dtype=torch.bool)
    mask[:, : size[0], : size[1]] = True
    cropped = layer(maps[:, :, : size[0], : size[1]], return_details=True)
    masked = layer(torch.where(mask[:, None], maps, math.nan), mask, return_details=True)
    torch.testing.assert_close(masked.vector, cropped.vector)
    torch.testing.assert_close(masked.weights[mask.flatten(1)], cropped.weights[0])
    assert not masked.weights[~mask.flatten(1)].any()


@every_pooling
def test_masked_features_receive_no_gradient(name):
    tokens, mask = random(2, 6, WIDTH), torch.tensor([[True, False, True, True, False, True]] * 2)
    tokens[~mask] = math.nan
    tokens.requires_grad_()
    call(pooling(name), tokens, mask).vector.square().sum().backward()
    assert not tokens.grad[~mask].any()
    assert tokens.grad[mask].isfinite().all()
    assert tokens.grad[mask].any()


@every_pooling
def test_masks_of_maps_may_be_maps(name):
    layer, maps, mask = pooling(name), random(2, WIDTH, *GRID), random(2, *GRID) > -0.5
    guide = project(maps.flatten(2).mT) if layer.needs_guide else None
    torch.testing.assert_close(layer(maps, mask, guide=guide), layer(maps, mask.flatten(1), guide=guide))
    assert not torch.equal(layer(maps, mask, guide=guide), layer(maps, guide=guide))


@of("set")
@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(6)))
def test_sets_are_invariant_to_order(name, order):
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    straight, shuffled = call(layer, tokens), call(layer, tokens[:, order])
    torch.testing.assert_close(shuffled.vector, straight.vector)
    if straight.weights is not None:
        torch.testing.assert_close(shuffled.weights, straight.weights[:, order])
    if straight.attributes is not None:
        torch.testing.assert_close(shuffled.attributes, straight.attributes)


@pytest.mark.parametrize("name", [name for name in POOLINGS if POOLINGS[name].layout != "set"])
def test_grids_and_fixed_layouts_depend_on_order(name):
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    assert not torch.allclose(call(layer, tokens.flip(1)).vector, call(layer, tokens.roll(1, 1)).vector)


@every_pooling
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 3000.0])
def test_lower_precision_is_close_to_float64(name, dtype, scale):
    exact, lower = pooling(name), pooling(name).float()
    tokens = (scale * random(2, 6, WIDTH).abs()).to(dtype)
    guide = project(tokens.double()) if exact.needs_guide else None
    shaped = tokens.mT.unflatten(2, GRID) if exact.layout == "grid" else tokens
    result = lower(shaped, guide=None if guide is None else guide.float(), return_details=True)
    expected = exact(shaped.double(), guide=guide)
    assert result.vector.dtype is dtype
    if result.weights is not None:
        assert result.weights.dtype is torch.float32
    tolerance = 3e-5 if dtype is torch.float32 else 2 * torch.finfo(dtype).eps
    reachable = expected.abs() < torch.finfo(dtype).max
    torch.testing.assert_close(result.vector.double()[reachable], expected[reachable], rtol=tolerance, atol=tolerance)


@every_pooling
def test_layers_in_half_precision_work(name):
    layer, tokens = pooling(name), random(2, 6, WIDTH).abs().bfloat16()
    exact = call(layer, tokens.double()).vector
    found = call(layer.bfloat16(), tokens)
    assert found.vector.dtype is torch.bfloat16
    torch.testing.assert_close(found.vector.double(), exact, rtol=0.1, atol=0.1)


@every_pooling
def test_autocast_changes_nothing(name):
    layer, tokens = pooling(name).float(), random(2, 6, WIDTH).float()
    expected = call(layer, tokens)
    guide = project(tokens) if layer.needs_guide else None
    shaped = tokens.mT.unflatten(2, GRID) if layer.layout == "grid" else tokens
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(shaped, guide=guide, return_details=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@every_pooling
def test_gradient_equals_finite_differences(name):
    layer = pooling(name)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    names, values = zip(*layer.named_parameters(), strict=True) if list(layer.parameters()) else ((), ())

    def pooled(tokens: Tensor, *parameters: Tensor) -> Tensor:
        shaped = tokens.mT.unflatten(2, GRID) if layer.layout == "grid" else tokens
        extra = {"guide": project(tokens) if layer.needs_guide else None}
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
def test_weights_and_attributes_sum_to_one(name):
    layer = pooling(name)
    result = call(layer, random(3, 6, WIDTH))
    assert result.vector.shape == (3, layer.output_width(WIDTH))
    assert (result.weights is not None) is layer.has_weights
    assert (result.attributes is not None) is layer.has_attributes
    for fractions in (result.weights, result.attributes):
        if fractions is not None:
            assert fractions.shape[0] == 3
            assert (fractions >= 0).all()
            torch.testing.assert_close(fractions.sum(dim=1), torch.ones(3, dtype=fractions.dtype))
    assert result.weights is None or result.weights.shape == (3, 6)


@pytest.mark.parametrize("name", ["gmp", "gap_gmp", "crow", "gemean", "tsmk", "gsp", "gmp_gsp", "gemean_gsp"])
def test_weights_peak_at_the_dominant_feature(name):
    layer, tokens = pooling(name), 0.1 * random(1, 6, WIDTH).abs()
    tokens[0, 4] = 3.0
    if isinstance(layer, PrototypePooling):  # dominant means close to a prototype
        like = torch.ones(WIDTH, dtype=torch.float64) * 3
        layer.prototypes.data.copy_(
            (like if not layer.needs_guide else project(like[None])[0]).expand_as(layer.prototypes)
        )
    assert call(layer, tokens).weights.argmax() == 4


def test_generalized_max_pooling_gives_repeated_features_small_weights():
    tokens = torch.tensor([[[2.0, 0.0]] * 5 + [[0.0, 2.0]]])
    weights = POOLINGS.build({"name": "gemax"})(tokens, return_details=True).weights[0]
    # Five coefficients of 1 / (1 + 20), one of 1 / (1 + 4).
    torch.testing.assert_close(weights, torch.tensor([1 / 21] * 5 + [1 / 5]) / (5 / 21 + 1 / 5))


def test_max_pooling_weights_count_the_maxima():
    tokens = torch.tensor([[[9.0, 0.0, 0.0, 0.0], [0.0, 8.0, 7.0, 0.0], [0.0, 0.0, 0.0, 6.0]]])
    weights = POOLINGS.build({"name": "gmp"})(tokens, return_details=True).weights
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
def test_wrong_mask_raises(name, case):
    expected = r"mask: expected torch.bool \(2, 6\) or \(2, 2, 3\), got torch\."
    with pytest.raises(ValueError, match=expected):
        pooling(name)(random(2, WIDTH, *GRID), WRONG_MASKS[case])


@every_pooling
def test_fully_masked_image_raises(name):
    mask = torch.tensor([[True] * 5 + [False], [False] * 6])
    with pytest.raises(DataError, match="mask: all features of image 1"):
        call(pooling(name), random(2, 6, WIDTH), mask)


@every_pooling
@pytest.mark.parametrize("shape", [(WIDTH,), (5, WIDTH), (1, 2, WIDTH, 3, 3)], ids=str)
def test_wrong_rank_raises(name, shape):
    with pytest.raises(ValueError, match=r"features: expected a map \(B, C, H, W\) or tokens \(B, N, C\)"):
        pooling(name)(random(*shape))


@every_pooling
@pytest.mark.parametrize("features", [[[1.0]], np.zeros((2, WIDTH, *GRID))], ids=["list", "numpy"])
def test_other_types_than_tensors_raise(name, features):
    with pytest.raises(TypeError, match=r"features: expected a torch.Tensor, got (list|ndarray)\."):
        pooling(name)(features)
    with pytest.raises(TypeError, match=r"mask: expected a boolean torch.Tensor, got (list|ndarray)\."):
        pooling(name)(random(2, WIDTH, *GRID), features)


@every_pooling
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.complex64], ids=str)
def test_other_dtypes_than_floating_point_raise(name, dtype):
    with pytest.raises(TypeError, match=f"features: expected a floating-point tensor, got {dtype}"):
        pooling(name)(torch.ones(2, WIDTH, *GRID, dtype=dtype))


SIZED = [name for name in POOLINGS if "in_features" in inspect.signature(POOLINGS[name]).parameters]


@pytest.mark.parametrize("name", SIZED)
def test_layouts_of_other_libraries_are_recognized(name):
    layer = pooling(name)
    with pytest.raises(ValueError, match=r"\(B, 4, H, W\), got \(2, 2, 3, 4\), which looks channels-last"):
        layer(random(2, *GRID, WIDTH))
    with pytest.raises(ValueError, match=r"expected shape \(B, N, 4\), got \(2, 4, 6\), which looks channels-first"):
        layer(random(2, WIDTH, 6))
    with pytest.raises(ValueError, match=r"expected shape \(B, N, 4\), got \(2, 6, 7\)\. Pass in_features=7"):
        layer(random(2, 6, 7))


@pytest.mark.parametrize("name", ["gmp_gsp", "gemean_gsp"])
def test_wrong_guide_raises(name):
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    with pytest.raises(ValueError, match=r"guide: expected \(B, n\) = \(2, 6\) as in features, got \(2, 5\)"):
        layer(tokens, guide=project(tokens)[:, :5])
    with pytest.raises(ValueError, match=r"guide: expected shape \(B, N, 3\), got \(2, 6, 4\)"):
        layer(tokens, guide=tokens)


@of("grid")
def test_grid_layout_rejects_tokens(name):
    with pytest.raises(ValueError, match=r"features: .* needs a map \(B, C, H, W\), got tokens \(2, 6, 4\)"):
        pooling(name)(random(2, 6, WIDTH))


@of("fixed")
def test_fixed_layout_rejects_another_number_of_features(name):
    with pytest.raises(ValueError, match="features: expected 6 local features per image, got 5"):
        pooling(name)(random(2, 5, WIDTH))


@every_pooling
def test_guide_is_required_or_rejected(name):
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    if layer.needs_guide:
        with pytest.raises(ValueError, match=r"guide: .* needs the projected features"):
            layer(tokens)
    elif layer.layout == "set":
        with pytest.raises(ValueError, match=r"guide: .* takes no guide"):
            layer(tokens, guide=tokens)


@pytest.mark.slow
@every_pooling
def test_compiles_to_one_graph_that_equals_eager(name):
    torch._dynamo.reset()
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    guide = {"guide": project(tokens)} if layer.needs_guide else {}
    shaped = tokens.mT.unflatten(2, GRID) if layer.layout == "grid" else tokens
    torch.testing.assert_close(compiled(shaped, mask, **guide), layer(shaped, mask, **guide))


@pytest.mark.slow
@every_pooling
def test_exported_program_equals_eager(name):
    layer, tokens = pooling(name), random(2, 6, WIDTH)
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    guide = {"guide": project(tokens)} if layer.needs_guide else {}
    shaped = tokens.mT.unflatten(2, GRID) if layer.layout == "grid" else tokens
    with torch.no_grad():
        exported = torch.export.export(layer, (shaped, mask), guide, strict=False).module()
        torch.testing.assert_close(exported(shaped, mask, **guide), layer(shaped, mask, **guide))


@pytest.mark.parametrize("name", ["netvlad", "otp"])
def test_concatenated_vectors_have_the_embedding_size(name):
    settings = POOLINGS.resolve(name)
    assert POOLINGS[name].local_width(128, settings) == 16  # the 8x16 of [Thesis]
    count = "clusters" if name == "netvlad" else "num_prototypes"
    assert POOLINGS[name].local_width(8192, POOLINGS.resolve({"name": name, count: 64})) == 128
    assert POOLINGS.build({"name": name}, in_features=16).output_width(16) == 128
    with pytest.raises(ConfigError, match=rf"pooling\.{count}: .* dim=130 is not a multiple of 8"):
        POOLINGS[name].local_width(130, settings)


INVALID = {
    "cbam": [{"reduction": 0}, {"kernel": 4}],
    "delf": [{"hidden": 0}],
    "gemax": [{"ridge": 0.0}],
    "gemean": [{"p": 0.0}],
    "gsop": [{"attention": 0}],
    "rk_fbp": [{"rank": 0}],
    "otp": [{"num_prototypes": 0}, {"eps": -1.0}, {"steps": 0}, {"memory_size": 3}],
    "solar": [{"reduction": 0}, {"p": -1.0}],
    "netvlad": [{"clusters": 0}],
    "weldon": [{"largest": 0}, {"smallest": 0}],
    "gmp_gsp": [{"mu": 0.0}, {"eps": -1.0}, {"memory_size": 3}],
    "gemean_gsp": [{"mu": 1.5}, {"p": 0.0}],
}


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name in INVALID for wrong in INVALID[name]], ids=str)
def test_invalid_settings_raise(name, wrong):
    with pytest.raises(ConfigError, match=rf"{next(iter(wrong))}: expected .*, got "):
        POOLINGS.build({"name": name, **wrong}, in_features=WIDTH, dim=DIM, positions=6)


def test_rank_one_bilinear_pooling_is_a_hadamard_product():
    layer, tokens = pooling("rk_fbp", 1), random(2, 6, WIDTH)
    left, right = layer.left.weight, layer.right.weight
    assert left.shape == right.shape == (WIDTH, WIDTH)
    torch.testing.assert_close(layer(tokens), ((tokens @ left.T) * (tokens @ right.T)).mean(dim=1))


def test_bilinear_forms_have_the_rank_of_the_setting():
    # Coefficients of x_i x_j in output o, from the values at unit vectors and their sums (polarization).
    for rank in (1, 2, WIDTH):
        layer = POOLINGS.build({"name": "rk_fbp", "rank": rank}, in_features=WIDTH).double()
        unit = torch.eye(WIDTH, dtype=torch.float64)
        both = layer((unit[:, None] + unit).flatten(0, 1)[:, None]).unflatten(0, (WIDTH, WIDTH))
        alone = layer(unit[:, None])
        symmetric = (both - alone[:, None] - alone).permute(2, 0, 1)  # W_o + W_o', of rank 2 k
        found = torch.linalg.matrix_rank(symmetric, rtol=1e-9)
        assert found.tolist() == [min(2 * rank, WIDTH)] * WIDTH


def test_any_quadratic_form_is_a_bilinear_pooling_of_full_rank():
    forms, tokens = random(WIDTH, WIDTH, WIDTH, seed=1), random(2, 6, WIDTH)
    layer = POOLINGS.build({"name": "rk_fbp", "rank": WIDTH}, in_features=WIDTH).double()
    with torch.no_grad():  # W_o = sum over r of e_r (row r of W_o)'
        layer.left.weight.copy_(torch.eye(WIDTH).repeat_interleave(WIDTH, dim=0))
        layer.right.weight.copy_(forms.transpose(0, 1).flatten(0, 1))
    expected = torch.einsum("bni,oij,bnj->bo", tokens, forms, tokens) / 6
    torch.testing.assert_close(layer(tokens), expected)


def test_bilinear_pooling_is_of_second_order_and_even():
    layer, tokens = pooling("rk_fbp"), random(2, 6, WIDTH)
    torch.testing.assert_close(layer(3 * tokens), 9 * layer(tokens))
    torch.testing.assert_close(layer(-tokens), layer(tokens))


def test_masked_batch_norm_equals_batch_norm_of_the_unmasked_features():
    ours, theirs = MaskedBatchNorm(WIDTH).double(), nn.BatchNorm1d(WIDTH).double()
    for seed in range(3):
        x, mask = 2 + random(5, 6, WIDTH, seed=seed), random(5, 6, seed=10 + seed) > -0.5
        torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    x = random(5, 6, WIDTH)
    torch.testing.assert_close(ours(x).flatten(0, 1), theirs(x.flatten(0, 1)))
    torch.testing.assert_close(ours.eval()(x).flatten(0, 1), theirs.eval()(x.flatten(0, 1)))


@every_pooling
def test_repr_shows_every_setting(name):
    layer, shown = pooling(name), repr(pooling(name))
    assert shown.startswith(type(layer).__name__)
    for parameter in POOLINGS.parameters(name):
        assert parameter.name.startswith("learn_") or f"{parameter.name}=" in shown


@pytest.mark.parametrize("name", ["cbam", "gsop", "netvlad", "otp", "gsp", "gmp_gsp", "gemean_gsp"])
def test_renamed_settings_have_aliases(name):
    present = {parameter.name for parameter in POOLINGS.parameters(name)}
    aliases = POOLINGS[name].aliases
    assert set(aliases.values()) <= present
    assert not set(aliases) & present


def test_netvlad_loads_the_centers_of_version_0_1_0():
    layer, other = pooling("netvlad"), nn.Sequential(pooling("netvlad", 0))
    old = {f"0.{key}".replace("centers", "centres"): value * 2 for key, value in layer.state_dict().items()}
    assert "0.centres" in old
    other.load_state_dict(old)
    assert torch.equal(other[0].centers, 2 * layer.centers)
    assert "0.centres" in old  # the caller's dictionary is not changed
    with pytest.raises(RuntimeError, match="centers"):
        layer.load_state_dict({"assign.weight": layer.assign.weight, "assign.bias": layer.assign.bias})


@pytest.mark.parametrize(("alias", "name"), [("gem", "gemean"), ("avgmax", "gap_gmp"), ("gem_gsp", "gemean_gsp")])
def test_long_names_are_aliases(alias, name):
    assert POOLINGS.resolve(alias) == POOLINGS.resolve(name)
    assert alias not in list(POOLINGS)


def test_settings_of_version_0_1_0_are_read():
    found = POOLINGS.resolve({"name": "gsp", "num_prototypes": 4, "memory_size": 32, "mu": 0.2})
    assert (found.num_prototypes, found.memory_size, found.mu) == (4, 32, 0.2)
    assert POOLINGS.resolve({"name": "gsop", "centred": False}).centered is False
    assert POOLINGS.resolve({"name": "cbam", "normalise": False}).normalize is False
