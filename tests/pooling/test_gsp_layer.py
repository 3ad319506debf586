"""The life of a GSP layer: average pooling while its memory fills, then prototypes set from that memory."""

import copy
import io
import math

import pytest
import torch
from torch import Tensor, nn

from winnow.functional import clip_norm, gsp
from winnow.pooling import GAP, GSP

WIDTH = 3


def tokens(count: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(count, 5, WIDTH, generator=torch.Generator().manual_seed(seed))


def layer(seed: int = 0, **settings) -> GSP:
    torch.manual_seed(seed)
    return GSP(WIDTH, **({"prototypes": 3, "memory": 10} | settings))


def ready_layer(seed: int = 0, **settings) -> GSP:
    filled = layer(seed, **settings)
    filled(tokens(10, seed=50))
    return filled


def through_disk(state: dict) -> dict:
    saved = io.BytesIO()
    torch.save(state, saved)
    saved.seek(0)
    return torch.load(saved, weights_only=True)


def slow_k_centre(points: list[list[float]], k: int, centres: list[list[float]]) -> list[list[float]]:
    chosen = []
    for _ in range(k):
        gaps = [min(math.dist(p, c) for c in centres + chosen) for p in points]
        chosen.append(points[gaps.index(max(gaps))])
    return chosen


@pytest.mark.parametrize("mode", [True, False], ids=["training", "inference"])
def test_new_layer_is_average_pooling(mode):
    new, features = layer().train(mode), tokens(4, seed=1)
    mask = torch.tensor([[True, True, True, False, True]] * 4)
    result, average = new(features, mask, details=True), GAP()(features, mask, details=True)
    assert not new.is_ready
    assert torch.equal(result.pooled, average.pooled)
    assert torch.equal(result.weights, average.weights)
    assert result.attributes.shape == (4, 3)
    assert not result.attributes.any()


def test_memory_fills_only_in_training():
    new = layer().eval()
    new(tokens(20, seed=1))
    assert int(new.filled) == 0
    assert not new.memory.any()
    new.train()(tokens(4, seed=2))
    assert int(new.filled) == 4
    assert not new.is_ready


def test_memory_holds_clipped_averages_in_order():
    new = layer()
    batches = [tokens(3, seed=1, scale=5.0), tokens(4, seed=2)]
    for batch in batches:
        new(batch)
    averages = torch.cat(batches).mean(dim=1)
    lengths = averages.norm(dim=1, keepdim=True)
    assert (lengths > 1).any()
    assert (lengths < 1).any()
    torch.testing.assert_close(new.memory[:7], torch.where(lengths > 1, averages / lengths, averages))
    assert not new.memory[7:].any()


def test_full_memory_makes_prototypes_by_k_centre_around_its_first_rows():
    new = layer(prototypes=4, memory=20)
    for step in range(4):
        assert not new.is_ready
        new(tokens(5, seed=step))
    assert new.is_ready
    rows = new.memory.tolist()
    expected = torch.tensor(slow_k_centre(rows[4:], 4, centres=rows[:4]))
    assert torch.equal(new.prototypes.detach(), expected * (1 + 16 * torch.finfo(expected.dtype).eps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_prototypes_start_where_rounding_does_not_decide(dtype):
    """On the sphere some would have their gradient cut to the tangent, and others on another machine."""
    new = layer(prototypes=8, memory=20).to(dtype)
    for step in range(4):
        new(tokens(5, seed=step, scale=50.0).to(dtype))
    lengths = new.prototypes.detach().double().norm(dim=1)
    eps = torch.finfo(dtype).eps
    assert (lengths > 1 + 8 * eps).all()
    assert (lengths < 1 + 32 * eps).all()
    used = clip_norm(new.prototypes)
    (used * torch.randn_like(used)).sum().backward()
    along = (new.prototypes.grad * new.prototypes).sum(dim=1).abs()
    assert (along < 1e3 * eps * new.prototypes.grad.norm(dim=1)).all()


def test_batch_that_fills_the_memory_is_still_averaged_and_the_next_is_not():
    new, features = layer(), tokens(10, seed=1)
    result = new(features, details=True)
    assert new.is_ready
    torch.testing.assert_close(result.pooled, features.mean(dim=1))
    assert not result.attributes.any()
    again = new(features, details=True)
    expected = gsp(features, new.prototypes, 0.3, 5.0)
    torch.testing.assert_close(again.pooled, expected.pooled)
    torch.testing.assert_close(again.attributes, expected.attributes)
    assert not torch.allclose(again.pooled, result.pooled)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (25,), (9, 1, 5)], ids=str)
def test_rows_beyond_the_memory_are_dropped(sizes):
    new = layer()
    batches = [tokens(size, seed=step, scale=0.1) for step, size in enumerate(sizes)]
    for batch in batches:
        new(batch)
    assert new.is_ready
    assert int(new.filled) == 10
    torch.testing.assert_close(new.memory, torch.cat(batches).mean(dim=1)[:10])


def test_ready_layer_collects_no_more():
    filled = ready_layer()
    memory, prototypes = filled.memory.clone(), filled.prototypes.detach().clone()
    filled(tokens(10, seed=60))
    assert torch.equal(filled.memory, memory)
    assert torch.equal(filled.prototypes, prototypes)


def test_optimiser_built_before_trains_the_prototypes_set_later():
    new = layer()
    parameter = new.prototypes
    optimiser = torch.optim.SGD(new.parameters(), lr=0.1)
    new(tokens(10, seed=50))
    assert new.prototypes is parameter
    at_start = parameter.detach().clone()
    new(tokens(4, seed=51)).square().sum().backward()
    gradient = parameter.grad.clone()
    optimiser.step()
    assert gradient.any(dim=1).all()
    torch.testing.assert_close(new.prototypes.detach(), at_start - 0.1 * gradient)


@pytest.mark.parametrize("seen", [0, 4, 10, 15], ids=lambda n: f"after {n} rows")
def test_loaded_layer_goes_on_as_the_original_would(seen):
    original, loaded = layer(seed=0), layer(seed=1)
    original(tokens(seen, seed=1))
    loaded.load_state_dict(through_disk(original.state_dict()))
    assert loaded.is_ready is original.is_ready is (seen >= 10)
    for step in range(3):
        expected, found = (x(tokens(3, seed=70 + step), details=True) for x in (original, loaded))
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b)
    assert original.is_ready is (seen >= 4)
    torch.testing.assert_close(dict(loaded.state_dict()), dict(original.state_dict()), rtol=0, atol=0)


def test_loading_a_new_state_makes_a_ready_layer_start_over():
    # Loaded through a parent, as part of a model.
    used, new = nn.Sequential(ready_layer()), nn.Sequential(layer(seed=1))
    assert used[0].is_ready
    used.load_state_dict(through_disk(new.state_dict()))
    assert not used[0].is_ready
    torch.testing.assert_close(used(tokens(4, seed=2)), tokens(4, seed=2).mean(dim=1))
    assert int(used[0].filled) == 4


def test_loaded_ready_layer_compiles_to_one_graph_before_any_call():
    torch._dynamo.reset()
    original, loaded = ready_layer().eval(), layer(seed=1).eval()
    loaded.load_state_dict(original.state_dict())
    compiled = torch.compile(loaded, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens(2, seed=2)), original(tokens(2, seed=2)))


@pytest.mark.parametrize("seen", [4, 10], ids=lambda n: f"after {n} rows")
def test_copy_lives_its_own_life(seen):
    original = layer()
    original(tokens(seen, seed=1))
    twin = copy.deepcopy(original)
    assert twin.is_ready is original.is_ready
    state = copy.deepcopy(dict(original.state_dict()))
    twin(tokens(8, seed=2))
    twin.load_state_dict(layer(seed=3).state_dict())
    torch.testing.assert_close(dict(original.state_dict()), state, rtol=0, atol=0)
    assert original.is_ready is (seen == 10)
    assert not twin.is_ready


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_features_fill_a_float32_memory(dtype):
    new, features = layer(), tokens(10, seed=1).to(dtype)
    first = new(features, details=True)
    assert new.is_ready
    assert new.memory.dtype is new.prototypes.dtype is torch.float32
    torch.testing.assert_close(new.memory, ready_like(features).memory, rtol=1e-2, atol=1e-2)
    second = new(features, details=True)
    for result in (first, second):
        assert result.pooled.dtype is dtype
        assert result.weights.dtype is result.attributes.dtype is torch.float32
        assert result.pooled.isfinite().all()


def ready_like(features: Tensor) -> GSP:
    reference = layer()
    reference(features.float())
    return reference


def test_double_layer_reports_double_before_and_after():
    new = layer().double()
    for _ in range(2):
        result = new(tokens(10, seed=1).double(), details=True)
        assert {x.dtype for x in result} == {torch.float64}


WRONG = {
    "memory too small": ({"memory": 5}, "memory of at least twice its 3 prototypes, got 5"),
    "no share": ({"mu": 0.0}, r"mu .* must be in \(0, 1\], got 0.0"),
    "more than all": ({"mu": 1.5}, r"mu .* must be in \(0, 1\], got 1.5"),
    "share not a number": ({"mu": math.nan}, r"mu .* must be in \(0, 1\], got nan"),
    "negative sharpness": ({"eps": -1.0}, "eps .* finite and not negative, got -1.0"),
    "endless sharpness": ({"eps": math.inf}, "eps .* finite and not negative, got inf"),
    "no prototypes": ({"prototypes": 0}, "at least one prototype, got 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_impossible_settings_are_refused_at_once(case):
    chosen, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        layer(**chosen)


def test_memory_of_exactly_twice_the_prototypes_is_enough():
    smallest = layer(memory=6)
    smallest(tokens(6, seed=1))
    expected = smallest.memory[3:] * (1 + 16 * torch.finfo(torch.float32).eps)
    assert {tuple(row) for row in smallest.prototypes.tolist()} == {tuple(row) for row in expected.tolist()}


def test_repr_tells_the_settings_and_readiness():
    assert "width=3, prototypes=3, mu=0.3, eps=5.0, ready=False" in repr(layer())
    assert "ready=True" in repr(ready_layer())


def test_replayed_steps_count_and_set_the_prototypes_as_eager_ones_do(monkeypatch):
    eager, replayed = layer(), layer()
    batches = [tokens(4, seed=step) for step in range(4)]
    for batch in batches:
        eager(batch)
    for batch in batches:  # under capture forward does only what the device can
        phase = replayed.phase
        with monkeypatch.context() as capture:
            capture.setattr("winnow.pooling.prototypes._is_capturing", lambda _: True)
            replayed(batch)
        assert replayed.phase == phase
        replayed.advance()
    assert replayed.phase
    assert replayed.is_ready
    torch.testing.assert_close(dict(replayed.state_dict()), dict(eager.state_dict()), rtol=0, atol=0)


def test_a_layer_that_is_filling_can_be_compiled():
    torch._dynamo.reset()
    plain, compiled = layer(), layer()
    called = torch.compile(compiled, backend="eager")
    for step in range(5):
        torch.testing.assert_close(called(tokens(3, seed=step)), plain(tokens(3, seed=step)))
    assert compiled.is_ready
    torch.testing.assert_close(dict(compiled.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)
