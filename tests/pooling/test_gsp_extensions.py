"""Tests of GSP extensions: learned or per-image mu, priors, background role."""

import math

import pytest
import torch
from torch import Tensor

from winnow.functional import clip_norm, gsp, gsp_weights, pairwise_distance, soft_selection
from winnow.losses import ZeroShotRegularizer
from winnow.pooling import GAP, GSP

WIDTH = 3


def random(*shape: int, seed: int = 0) -> Tensor:
    return 0.6 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ready(**settings) -> GSP:
    torch.manual_seed(0)
    layer = GSP(WIDTH, **({"num_prototypes": 4, "memory_size": 8} | settings)).double()
    layer(random(8, 5, WIDTH, seed=50))
    layer.prototypes.data.mul_(1.1)  # clipping is not differentiable at length 1
    assert layer.prototypes_ready
    return layer


TOKENS, PROTOTYPES = random(2, 7, WIDTH, seed=1), random(4, WIDTH, seed=2)
PRIOR = random(2, 7, seed=3).abs() + 0.1
MASK = torch.tensor([[True] * 7, [True, False, True, True, True, False, True]])


# One mu per image.


def test_mu_can_differ_per_image():
    layer, mu = ready(), torch.tensor([0.2, 1.0], dtype=torch.float64)
    both = layer.pool(TOKENS, mu=mu)
    for image in range(2):
        alone = gsp(TOKENS[image : image + 1], layer.prototypes, float(mu[image]), 5.0)
        for found, expected in zip(both, alone, strict=True):
            torch.testing.assert_close(found[image], expected[0])
    torch.testing.assert_close(both.vector[1], TOKENS[1].mean(dim=0))


def test_gradient_of_a_mu_per_image():
    layer = ready()
    mu = torch.tensor([0.25, 0.8], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda mu, x: layer.pool(x, MASK, mu=mu), (mu, TOKENS.clone().requires_grad_()))


# Learned mu and eps.


def test_learned_mu_and_eps_start_at_their_settings_and_change():
    layer = ready(mu=0.4, eps=3.0, learn_mu=True, learn_eps=True)
    fixed = ready(mu=0.4, eps=3.0)
    torch.testing.assert_close(layer(TOKENS), fixed(TOKENS))
    assert {name for name, _ in layer.named_parameters()} == {"prototypes", "mu_logit", "log_eps"}
    assert [name for name, _ in fixed.named_parameters()] == ["prototypes"]
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(TOKENS).square().sum().backward()
    optimizer.step()
    assert float(layer.mu.detach()) != pytest.approx(0.4, abs=1e-4)
    assert float(layer.eps.detach()) != pytest.approx(3.0, abs=1e-4)


@pytest.mark.parametrize("role", ["foreground", "background"])
def test_gradients_of_learned_mu_and_eps(role):
    layer = ready(learn_mu=True, learn_eps=True, role=role)

    def pooled(mu_logit: Tensor, log_eps: Tensor, prototypes: Tensor) -> Tensor:
        state = {"mu_logit": mu_logit, "log_eps": log_eps, "prototypes": prototypes}
        result = torch.func.functional_call(layer, state, (TOKENS, MASK), {"return_details": True})
        return torch.cat([result.vector, result.weights, result.attributes], dim=1)

    inputs = [p.detach().clone().requires_grad_() for p in (layer.mu_logit, layer.log_eps, layer.prototypes)]
    assert torch.autograd.gradcheck(pooled, inputs)


def test_limits_of_learned_mu_and_eps():
    layer = ready(learn_mu=True, learn_eps=True)
    average = TOKENS.mean(dim=1)
    with torch.no_grad():
        layer.log_eps.fill_(-40.0)  # eps to 0
        torch.testing.assert_close(layer(TOKENS), average)
        layer.log_eps.fill_(math.log(5.0))
        layer.mu_logit.fill_(40.0)  # mu to 1
        torch.testing.assert_close(layer(TOKENS), average)
        layer.mu_logit.fill_(math.log(2 / 5))  # mu = 2 / 7: the nearest two
        layer.log_eps.fill_(math.log(1e4))
        gaps = pairwise_distance(clip_norm(TOKENS), clip_norm(layer.prototypes)).amin(dim=2)
        nearest = gaps.argsort(dim=1)[:, :2]
        expected = torch.stack([TOKENS[b, nearest[b]].mean(dim=0) for b in range(2)])
        torch.testing.assert_close(layer(TOKENS), expected)


def test_learned_mu_and_eps_are_saved_and_loaded():
    layer, other = ready(learn_mu=True, learn_eps=True), ready(mu=0.7, eps=1.0, learn_mu=True, learn_eps=True)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(TOKENS), layer(TOKENS))


WRONG = {
    "learned mu of one": ({"mu": 1.0, "learn_mu": True}, "mu: expected below 1 with learn_mu, got 1.0"),
    "background mu of one": ({"mu": 1.0, "role": "background"}, "mu: expected below 1 with role=background, got 1.0"),
    "learned eps of zero": ({"eps": 0.0, "learn_eps": True}, "eps: expected above 0 with learn_eps, got 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bounds_of_mu_and_eps_raise(case):
    settings, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        GSP(WIDTH, **settings)


# A prior over features.


@pytest.mark.parametrize(("mu", "eps"), [(0.3, 5.0), (0.8, 30.0), (1.0, 5.0), (0.3, 0.0), (0.05, 1.0)])
def test_uniform_prior_equals_no_prior(mu, eps):
    for mask in (None, MASK):
        plain = gsp(TOKENS, PROTOTYPES, mu, eps, mask)
        for unit in (1.0, 1e-3):
            found = gsp(TOKENS, PROTOTYPES, mu, eps, mask, torch.full((2, 7), unit, dtype=torch.float64))
            torch.testing.assert_close(found, plain)


@pytest.mark.parametrize(("mu", "eps"), [(0.3, 5.0), (0.8, 30.0), (1.0, 5.0), (0.6, 0.0)])
def test_integer_prior_equals_repeated_features(mu, eps):
    times = torch.tensor([3, 1, 0, 2, 1, 4, 1])
    repeated = TOKENS.repeat_interleave(times, dim=1)
    expected = gsp(repeated, PROTOTYPES, mu, eps)
    found = gsp(TOKENS, PROTOTYPES, mu, eps, prior=times.double().expand(2, 7))
    torch.testing.assert_close(found.vector, expected.vector)
    torch.testing.assert_close(found.attributes, expected.attributes)
    owner = torch.arange(7).repeat_interleave(times)
    torch.testing.assert_close(found.weights, torch.zeros_like(found.weights).index_add(1, owner, expected.weights))


def test_prior_of_zero_equals_a_mask():
    plain = gsp(TOKENS, PROTOTYPES, 0.4, 5.0, MASK)
    torch.testing.assert_close(gsp(TOKENS, PROTOTYPES, 0.4, 5.0, prior=MASK.double()), plain)


@pytest.mark.parametrize(("mu", "eps"), [(1.0, 5.0), (0.3, 0.0)], ids=["mu = 1", "eps = 0"])
def test_prior_is_the_weights_without_selection(mu, eps):
    found = gsp(TOKENS, PROTOTYPES, mu, eps, prior=PRIOR)
    masses = PRIOR / PRIOR.sum(dim=1, keepdim=True)
    torch.testing.assert_close(found.weights, masses)
    torch.testing.assert_close(found.vector, (masses[..., None] * TOKENS).sum(dim=1))


def test_sharp_selection_takes_the_nearest_mass():
    costs = torch.tensor([[[0.1, 0.5, 0.3, 0.9]]], dtype=torch.float64)
    prior = torch.tensor([[2.0, 1.0, 4.0, 3.0]], dtype=torch.float64)
    found = gsp_weights(costs, 0.45, 1e4, prior=prior).weights
    # The selected mass is 4.5: the nearest feature has 2, and the next one contributes 2.5 of its 4.
    torch.testing.assert_close(found, torch.tensor([[2.0, 0.0, 2.5, 0.0]], dtype=torch.float64) / 4.5)


def test_moved_mass_never_exceeds_the_prior():
    found = gsp_weights(random(2, 4, 7).abs(), 0.35, 6.0, MASK, PRIOR).weights
    masses = torch.where(MASK, PRIOR, 0.0)
    masses = masses / masses.sum(dim=1, keepdim=True)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2, dtype=torch.float64))
    assert (0.35 * found <= masses + 1e-15).all()


def test_layer_without_prototypes_weights_by_the_prior():
    new = GSP(WIDTH, num_prototypes=4).double()
    found, expected = new.pool(TOKENS, MASK, prior=PRIOR), gsp(TOKENS, PROTOTYPES, 1.0, 5.0, MASK, PRIOR)
    torch.testing.assert_close(found.vector, expected.vector)
    torch.testing.assert_close(found.weights, expected.weights)
    assert not found.attributes.any()


@pytest.mark.parametrize(("mu", "eps"), [(0.3, 5.0), (0.7, 1.0), (0.3, 0.0)])
def test_gradient_with_a_prior(mu, eps):
    def outputs(x: Tensor, w: Tensor, mu: Tensor, eps: Tensor, prior: Tensor) -> tuple[Tensor, ...]:
        return tuple(gsp(x, w, mu, eps, MASK, prior))

    fraction, sharpness = (torch.tensor(value, dtype=torch.float64) for value in (mu, eps))
    inputs = [TOKENS.clone(), PROTOTYPES.clone(), fraction, sharpness, PRIOR.clone()]
    assert torch.autograd.gradcheck(outputs, [x.requires_grad_() for x in inputs])


def test_gradient_of_the_prior_without_selection():
    scores = random(2, 7)

    def weights(prior: Tensor) -> Tensor:
        return soft_selection(scores, 1.0, MASK, prior)

    assert torch.autograd.gradcheck(weights, PRIOR.clone().requires_grad_())


def test_prior_never_uses_the_fused_kernels(monkeypatch):
    def fail(*_: object) -> None:
        raise AssertionError("fused kernels called")

    monkeypatch.setattr("winnow.functional.transport.can_fuse", lambda *_: True)
    monkeypatch.setattr("winnow.functional.transport.fused_gsp", fail)
    gsp(TOKENS, PROTOTYPES, 0.3, 5.0, prior=PRIOR)
    with pytest.raises(AssertionError, match="fused kernels called"):
        gsp(TOKENS, PROTOTYPES, 0.3, 5.0)


@pytest.mark.slow
def test_prior_compiles_to_one_graph():
    torch._dynamo.reset()
    layer = ready().eval()

    def pooled(x: Tensor, prior: Tensor) -> Tensor:
        return layer.pool(x, MASK, prior=prior).vector

    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(TOKENS, PRIOR), pooled(TOKENS, PRIOR))


def test_half_precision_features_with_a_prior():
    found = gsp(TOKENS.bfloat16(), PROTOTYPES.float(), 0.3, 5.0, prior=PRIOR.bfloat16())
    exact = gsp(TOKENS.bfloat16().double(), PROTOTYPES, 0.3, 5.0, prior=PRIOR.bfloat16().double())
    assert (found.vector.dtype, found.weights.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(found.weights.double(), exact.weights, rtol=1e-4, atol=1e-5)


def test_prior_of_a_wrong_shape_raises():
    with pytest.raises(ValueError, match=r"prior.*\(2, 7\), got \(7,\)"):
        gsp(TOKENS, PROTOTYPES, 0.3, 5.0, prior=PRIOR[0])


# Prototypes as background.


def test_background_is_selection_by_distance():
    layer = ready(mu=0.4, role="background")
    costs = pairwise_distance(clip_norm(TOKENS), clip_norm(layer.prototypes)).mT
    far = soft_selection(-(-5.0 * costs).logsumexp(dim=1), 0.6, MASK)
    result = layer(TOKENS, MASK, return_details=True)
    torch.testing.assert_close(result.weights, far)
    torch.testing.assert_close(result.vector, (far[..., None] * TOKENS).sum(dim=1))


@pytest.mark.parametrize("prior", [None, PRIOR], ids=["uniform", "prior"])
def test_foreground_and_background_sum_to_the_average(prior):
    near, far = ready(), ready(role="background")
    mu = torch.tensor([0.2, 0.7], dtype=torch.float64)
    foreground, background = (layer.pool(TOKENS, MASK, mu=mu, prior=prior) for layer in (near, far))
    masses = torch.where(MASK, torch.ones_like(PRIOR) if prior is None else prior, 0.0)
    masses = masses / masses.sum(dim=1, keepdim=True)
    whole = (masses[..., None] * TOKENS).sum(dim=1)
    torch.testing.assert_close(mu[:, None] * foreground.vector + (1 - mu[:, None]) * background.vector, whole)
    torch.testing.assert_close(background.attributes, foreground.attributes)


def test_background_with_tiny_mu_is_average_pooling():
    torch.testing.assert_close(ready(mu=1e-12, role="background")(TOKENS), TOKENS.mean(dim=1))


def test_background_layer_without_prototypes_is_average_pooling():
    new = GSP(WIDTH, num_prototypes=4, role="background").double()
    torch.testing.assert_close(new(TOKENS, MASK), GAP()(TOKENS, MASK))


# ZSR without selection.


def test_zsr_works_without_selection():
    layer = ready(mu=1.0)
    result = layer(TOKENS.repeat(4, 1, 1), return_details=True)
    torch.testing.assert_close(result.weights, torch.full((8, 7), 1 / 7, dtype=torch.float64))
    torch.testing.assert_close(result.vector, TOKENS.repeat(4, 1, 1).mean(dim=1))
    torch.testing.assert_close(result.attributes.sum(dim=1), torch.ones(8, dtype=torch.float64))
    loss = ZeroShotRegularizer(4, 5).double()(result.attributes, torch.arange(8) // 2)
    loss.backward()
    assert loss > 0
    assert layer.prototypes.grad.isfinite().all()
    assert layer.prototypes.grad.any(dim=1).all()
