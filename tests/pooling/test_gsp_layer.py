"""Tests of the prototypes of GSP: collection, k-center, state, and own loops."""

import copy
import io
import math
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from winnow.errors import DataError
from winnow.functional import clip_norm, gsp
from winnow.pooling import GAP, GMPGSP, GSP, OTP, PrototypePooling, PrototypesNotSetWarning

WIDTH = 3


def tokens(count: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(count, 5, WIDTH, generator=torch.Generator().manual_seed(seed))


def layer(seed: int = 0, **settings) -> GSP:
    torch.manual_seed(seed)
    return GSP(WIDTH, **({"num_prototypes": 3, "memory_size": 10} | settings))


def ready_layer(seed: int = 0, **settings) -> GSP:
    filled = layer(seed, **settings)
    filled(tokens(10, seed=50))
    return filled


def through_disk(state: dict) -> dict:
    saved = io.BytesIO()
    torch.save(state, saved)
    saved.seek(0)
    return torch.load(saved, weights_only=True)


def slow_k_center(points: list[list[float]], k: int, centers: list[list[float]]) -> list[list[float]]:
    chosen = []
    for _ in range(k):
        gaps = [min(math.dist(p, c) for c in centers + chosen) for p in points]
        chosen.append(points[gaps.index(max(gaps))])
    return chosen


@pytest.mark.parametrize("mode", [True, False], ids=["training", "inference"])
def test_new_layer_is_average_pooling(mode):
    new, features = layer().train(mode), tokens(4, seed=1)
    mask = torch.tensor([[True, True, True, False, True]] * 4)
    result, average = new(features, mask, return_details=True), GAP()(features, mask, return_details=True)
    assert not new.prototypes_ready
    assert torch.equal(result.vector, average.vector)
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
    assert not new.prototypes_ready


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


def test_full_memory_sets_prototypes_by_k_center_around_its_first_rows():
    new = layer(num_prototypes=4, memory_size=20)
    for step in range(4):
        assert not new.prototypes_ready
        new(tokens(5, seed=step))
    assert new.prototypes_ready
    rows = new.memory.tolist()
    expected = torch.tensor(slow_k_center(rows[4:], 4, centers=rows[:4]))
    assert torch.equal(new.prototypes.detach(), expected * (1 + 16 * torch.finfo(expected.dtype).eps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_prototypes_are_slightly_longer_than_one(dtype):
    """At length 1, rounding would decide which gradients are cut to the tangent."""
    new = layer(num_prototypes=8, memory_size=20).to(dtype)
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


def test_batch_that_fills_the_memory_is_averaged_and_the_next_is_not():
    new, features = layer(), tokens(10, seed=1)
    result = new(features, return_details=True)
    assert new.prototypes_ready
    torch.testing.assert_close(result.vector, features.mean(dim=1))
    assert not result.attributes.any()
    again = new(features, return_details=True)
    expected = gsp(features, new.prototypes, 0.3, 5.0)
    torch.testing.assert_close(again.vector, expected.vector)
    torch.testing.assert_close(again.attributes, expected.attributes)
    assert not torch.allclose(again.vector, result.vector)


@pytest.mark.parametrize("sizes", [(4, 4, 4), (25,), (9, 1, 5)], ids=str)
def test_rows_beyond_the_memory_are_dropped(sizes):
    new = layer()
    batches = [tokens(size, seed=step, scale=0.1) for step, size in enumerate(sizes)]
    for batch in batches:
        new(batch)
    assert new.prototypes_ready
    assert int(new.filled) == 10
    torch.testing.assert_close(new.memory, torch.cat(batches).mean(dim=1)[:10])


def test_ready_layer_stops_collecting():
    filled = ready_layer()
    memory, prototypes = filled.memory.clone(), filled.prototypes.detach().clone()
    filled(tokens(10, seed=60))
    assert torch.equal(filled.memory, memory)
    assert torch.equal(filled.prototypes, prototypes)


def test_optimizer_built_before_trains_the_prototypes_set_later():
    new = layer()
    parameter = new.prototypes
    optimizer = torch.optim.SGD(new.parameters(), lr=0.1)
    new(tokens(10, seed=50))
    assert new.prototypes is parameter
    at_start = parameter.detach().clone()
    new(tokens(4, seed=51)).square().sum().backward()
    gradient = parameter.grad.clone()
    optimizer.step()
    assert gradient.any(dim=1).all()
    torch.testing.assert_close(new.prototypes.detach(), at_start - 0.1 * gradient)


@pytest.mark.parametrize("seen", [0, 4, 10, 15], ids=lambda n: f"after {n} rows")
def test_loaded_layer_continues_like_the_original(seen):
    original, loaded = layer(seed=0), layer(seed=1)
    original(tokens(seen, seed=1))
    loaded.load_state_dict(through_disk(original.state_dict()))
    assert loaded.prototypes_ready is original.prototypes_ready is (seen >= 10)
    for step in range(3):
        expected, found = (x(tokens(3, seed=70 + step), return_details=True) for x in (original, loaded))
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b)
    assert original.prototypes_ready is (seen >= 4)
    torch.testing.assert_close(dict(loaded.state_dict()), dict(original.state_dict()), rtol=0, atol=0)


def test_loading_a_new_state_resets_a_ready_layer():
    # Loaded through a parent module, as in a model.
    used, new = nn.Sequential(ready_layer()), nn.Sequential(layer(seed=1))
    assert used[0].prototypes_ready
    used.load_state_dict(through_disk(new.state_dict()))
    assert not used[0].prototypes_ready
    torch.testing.assert_close(used(tokens(4, seed=2)), tokens(4, seed=2).mean(dim=1))
    assert int(used[0].filled) == 4


def test_loaded_ready_layer_compiles_to_one_graph_before_any_call():
    torch._dynamo.reset()
    original, loaded = ready_layer().eval(), layer(seed=1).eval()
    loaded.load_state_dict(original.state_dict())
    compiled = torch.compile(loaded, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens(2, seed=2)), original(tokens(2, seed=2)))


@pytest.mark.parametrize("seen", [4, 10], ids=lambda n: f"after {n} rows")
def test_copy_has_separate_state(seen):
    original = layer()
    original(tokens(seen, seed=1))
    twin = copy.deepcopy(original)
    assert twin.prototypes_ready is original.prototypes_ready
    state = copy.deepcopy(dict(original.state_dict()))
    twin(tokens(8, seed=2))
    twin.load_state_dict(layer(seed=3).state_dict())
    torch.testing.assert_close(dict(original.state_dict()), state, rtol=0, atol=0)
    assert original.prototypes_ready is (seen == 10)
    assert not twin.prototypes_ready


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_features_fill_a_float32_memory(dtype):
    new, features = layer(), tokens(10, seed=1).to(dtype)
    first = new(features, return_details=True)
    assert new.prototypes_ready
    assert new.memory.dtype is new.prototypes.dtype is torch.float32
    torch.testing.assert_close(new.memory, ready_like(features).memory, rtol=1e-2, atol=1e-2)
    second = new(features, return_details=True)
    for result in (first, second):
        assert result.vector.dtype is dtype
        assert result.weights.dtype is result.attributes.dtype is torch.float32
        assert result.vector.isfinite().all()


def ready_like(features: Tensor) -> GSP:
    reference = layer()
    reference(features.float())
    return reference


def test_float64_layer_returns_float64_before_and_after():
    new = layer().double()
    for _ in range(2):
        result = new(tokens(10, seed=1).double(), return_details=True)
        assert {x.dtype for x in result} == {torch.float64}


WRONG = {
    "memory too small": ({"memory_size": 5}, r"memory_size: expected at least 6 \(twice num_prototypes\), got 5"),
    "zero mu": ({"mu": 0.0}, r"mu: expected .* in \(0, 1\], got 0.0"),
    "mu above one": ({"mu": 1.5}, r"mu: expected .* in \(0, 1\], got 1.5"),
    "mu is NaN": ({"mu": math.nan}, r"mu: expected .* in \(0, 1\], got nan"),
    "negative eps": ({"eps": -1.0}, "eps: expected a finite number of at least 0, got -1.0"),
    "infinite eps": ({"eps": math.inf}, "eps: expected a finite number of at least 0, got inf"),
    "no prototypes": ({"num_prototypes": 0}, "num_prototypes: expected at least 1, got 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_settings_raise(case):
    chosen, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        layer(**chosen)


def test_memory_of_exactly_twice_the_prototypes_is_enough():
    smallest = layer(memory_size=6)
    smallest(tokens(6, seed=1))
    expected = smallest.memory[3:] * (1 + 16 * torch.finfo(torch.float32).eps)
    assert {tuple(row) for row in smallest.prototypes.tolist()} == {tuple(row) for row in expected.tolist()}


def test_repr_shows_the_settings_and_readiness():
    shown = "in_features=3, num_prototypes=3, memory_size=10, mu=0.3, eps=5.0, role='foreground', prototypes_ready="
    assert f"{shown}False" in repr(layer())
    assert f"{shown}True" in repr(ready_layer())


def test_replayed_steps_set_the_same_prototypes_as_eager_steps(monkeypatch):
    eager, replayed = layer(), layer()
    batches = [tokens(4, seed=step) for step in range(4)]
    for batch in batches:
        eager(batch)
    for batch in batches:  # during capture, forward does only device work
        key = replayed.graph_key
        with monkeypatch.context() as capture:
            capture.setattr("winnow.pooling.prototypes._is_capturing", lambda _: True)
            replayed(batch)
        assert replayed.graph_key == key
        replayed.after_replay()
    assert replayed.graph_key
    assert replayed.prototypes_ready
    torch.testing.assert_close(dict(replayed.state_dict()), dict(eager.state_dict()), rtol=0, atol=0)


def test_collecting_layer_can_be_compiled():
    torch._dynamo.reset()
    plain, compiled = layer(), layer()
    called = torch.compile(compiled, backend="eager")
    for step in range(5):
        torch.testing.assert_close(called(tokens(3, seed=step)), plain(tokens(3, seed=step)))
    assert compiled.prototypes_ready
    torch.testing.assert_close(dict(compiled.state_dict()), dict(plain.state_dict()), rtol=0, atol=0)


# Evaluation before the prototypes are set.


def evaluate(pooling: PrototypePooling) -> None:
    features = tokens(4, seed=1)
    pooling(features, guide=features) if pooling.needs_guide else pooling(features)


@pytest.mark.parametrize("kind", [GSP, OTP, GMPGSP])
def test_evaluation_before_prototypes_are_set_warns_once(kind):
    new = kind(WIDTH, num_prototypes=3, memory_size=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(new)  # training does not warn
    new.eval()
    with pytest.warns(PrototypesNotSetWarning, match=rf"{kind.__name__} is evaluated before .* init_prototypes"):
        evaluate(new)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(new)


def test_ready_layer_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(ready_layer().eval())


# Prototypes set at once, for training loops without winnow.


def batches_of(sizes: tuple[int, ...]) -> list[Tensor]:
    return [tokens(size, seed=step) for step, size in enumerate(sizes)]


@pytest.mark.parametrize("sizes", [(10,), (4, 4, 4), (25,)], ids=str)
@pytest.mark.parametrize("form", ["tensor", "batches", "labeled", "generator", "loader", "maps"])
def test_init_prototypes_equals_training(form, sizes):
    trained, batches = layer(), batches_of(sizes)
    for batch in batches:
        trained(batch)
    every = torch.cat(batches)
    given = {
        "tensor": every,
        "batches": batches,
        "labeled": [(batch, torch.zeros(len(batch), dtype=torch.int64)) for batch in batches],
        "generator": (batch for batch in batches),
        "loader": DataLoader(TensorDataset(every, torch.arange(len(every))), batch_size=4),
        "maps": every.mT[..., None].clone(),
    }[form]
    own = layer(seed=1).eval()
    parameter = own.prototypes
    own.init_prototypes(given)
    assert own.prototypes_ready
    assert own.prototypes is parameter
    torch.testing.assert_close(dict(own.state_dict()), dict(trained.state_dict()), rtol=0, atol=0)
    assert own.prototypes.requires_grad


def test_init_prototypes_works_with_fewer_images_than_the_memory_holds():
    new, features = layer(memory_size=100), tokens(12, seed=1)
    new.init_prototypes(features)
    rows = clip_norm(features.mean(dim=1)).tolist()
    expected = torch.tensor(slow_k_center(rows[3:], 3, centers=rows[:3]))
    torch.testing.assert_close(new.prototypes.detach(), expected)
    loaded = layer(seed=1, memory_size=100)
    loaded.load_state_dict(through_disk(new.state_dict()))
    assert loaded.prototypes_ready
    torch.testing.assert_close(loaded(features), new(features))


def test_init_prototypes_stops_reading_once_the_memory_is_full():
    def endless():
        for step in range(100):
            assert step < 3
            yield tokens(4, seed=step)

    layer().init_prototypes(endless())


def test_init_prototypes_replaces_prototypes():
    new = ready_layer()
    before = new.prototypes.detach().clone()
    new.init_prototypes(tokens(12, seed=9))
    assert not torch.equal(new.prototypes, before)


def test_init_prototypes_of_a_guided_pooling_takes_projected_features():
    guide = tokens(10, seed=1)
    trained, own = (GMPGSP(WIDTH, num_prototypes=3, memory_size=10) for _ in range(2))
    trained(torch.randn(10, 5, 7), guide=guide)
    own.init_prototypes(guide)
    assert torch.equal(own.prototypes, trained.prototypes)


INVALID_FEATURES = {
    "too few": (lambda: tokens(5, seed=1), ValueError, "features: expected at least 6 images"),
    "none": (lambda: [], ValueError, "features: expected at least 6 images"),
    "NaN": (lambda: tokens(10, seed=1).fill_(math.nan), DataError, "features: image 0 of the batch has NaN"),
    "vectors": (lambda: torch.zeros(10, WIDTH), ValueError, "features: expected a map"),
    "another size": (lambda: torch.zeros(10, 5, 4), ValueError, r"features: expected shape \(B, N, 3\)"),
    "integers": (lambda: torch.zeros(10, 5, WIDTH, dtype=torch.int64), TypeError, "features: expected a floating"),
    "dictionaries": (lambda: [{"x": 1}], TypeError, "features: expected batches of tensors"),
    "labels first": (lambda: [(torch.zeros(4), tokens(4, seed=1))], ValueError, "features: expected a map"),
    "numpy": (lambda: [tokens(10, seed=1).numpy()], TypeError, "features: expected batches of tensors"),
}


@pytest.mark.parametrize("case", INVALID_FEATURES)
def test_init_prototypes_rejects_invalid_features(case):
    make, error, message = INVALID_FEATURES[case]
    new = layer()
    before = {key: value.clone() for key, value in new.state_dict().items()}
    with pytest.raises(error, match=message):
        new.init_prototypes(make())
    assert not new.prototypes_ready
    torch.testing.assert_close(dict(new.state_dict()), before, rtol=0, atol=0)


# NaN and infinite features while prototypes are collected.


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_features_raise_while_collecting(value):
    new = layer()
    new(tokens(4, seed=1))
    before = {key: entry.clone() for key, entry in new.state_dict().items()}
    spoiled = tokens(4, seed=2)
    spoiled[2, 1, 0] = value
    with pytest.raises(DataError, match="features: image 2 of the batch has NaN or infinite features"):
        new(spoiled)
    torch.testing.assert_close(dict(new.state_dict()), before, rtol=0, atol=0)
    new(tokens(6, seed=3))
    assert new.prototypes_ready
    assert new.prototypes.isfinite().all()


def test_layers_of_the_trainer_leave_reports_to_it():
    new, spoiled = layer(), tokens(10, seed=2)
    spoiled[3, 1, 0] = math.nan
    new.standalone = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new.eval()(spoiled)
    new.train()(spoiled)
    assert new.prototypes_ready
    assert new.prototypes.isfinite().all()


def test_masked_nan_features_do_not_raise():
    new, features = layer(), tokens(4, seed=1)
    features[:, 4] = math.nan
    new(features, torch.tensor([[True, True, True, True, False]] * 4))
    assert int(new.filled) == 4


def test_non_finite_features_in_a_captured_step_do_not_reach_the_prototypes(monkeypatch):
    new, spoiled = layer(), tokens(4, seed=2)
    spoiled[0, 1, 0] = math.nan
    for batch in (spoiled, tokens(4, seed=3), torch.full((2, 5, WIDTH), math.nan)):
        with monkeypatch.context() as capture:
            capture.setattr("winnow.pooling.prototypes._is_capturing", lambda _: True)
            new(batch)
        new.after_replay()
    assert new.prototypes_ready
    assert new.memory.isfinite().all()
    assert new.prototypes.isfinite().all()
    assert torch.equal(new.memory[0], new.memory[1])  # the first finite row of the batch
