"""Zero-shot regularization: class-disjoint halves, ridge regression, and the loss."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call

from winnow.losses import ZeroShotRegularizer
from winnow.losses.zero_shot import class_disjoint_halves, ridge_regression

LABELS = torch.tensor([3, 0, 3, 1, 4, 0, 1, 4])
AUTHORS = ZeroShotRegularizer.presets["authors"]


def module(num_classes: int = 6, width: int = 3, **settings) -> ZeroShotRegularizer:
    torch.manual_seed(7)
    return ZeroShotRegularizer(num_classes, width, **settings).double()


def attributes(count: int = 8, prototypes: int = 5, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, prototypes, generator=generator, dtype=torch.float64).softmax(dim=1)


any_labels = st.lists(st.sampled_from([-(2**63), -5, 0, 1, 2, 7, 10**12, 2**63 - 1]), min_size=1, max_size=20)


@settings(max_examples=100, deadline=None)
@given(labels=any_labels, seed=st.integers(0, 10**6))
def test_halves_share_no_class_and_are_balanced(labels, seed):
    torch.manual_seed(seed)
    in_first, classes = class_disjoint_halves(torch.tensor(labels))
    assert in_first.shape == (len(labels),)
    assert in_first.dtype is torch.bool
    first = {label for label, inside in zip(labels, in_first.tolist(), strict=True) if inside}
    second = {label for label, inside in zip(labels, in_first.tolist(), strict=True) if not inside}
    assert not first & second
    assert int(classes) == len(set(labels)) == len(first) + len(second)
    assert abs(len(first) - len(second)) <= 1
    if len(set(labels)) >= 2:
        assert first
        assert second


def test_each_call_draws_new_halves_and_every_split_occurs():
    torch.manual_seed(0)
    labels = torch.tensor([5, 5, 9, -1, 9, 2])
    drawn = {tuple(sorted(set(labels[class_disjoint_halves(labels)[0]].tolist()))) for _ in range(100)}
    assert drawn == {(-1, 2), (-1, 5), (-1, 9), (2, 5), (2, 9), (5, 9)}


@settings(max_examples=40, deadline=None)
@given(
    samples=st.integers(1, 8),
    width=st.integers(1, 8),
    ridge=st.sampled_from([0.01, 0.05, 3.0]),
    seed=st.integers(0, 10**6),
)
def test_ridge_regression_is_least_squares_on_the_augmented_system(samples, width, ridge, seed):
    rng = np.random.default_rng(seed)
    inputs, targets = rng.normal(size=(samples, width)), rng.normal(size=(samples, 2))
    augmented = np.vstack([inputs, np.sqrt(ridge) * np.eye(width)])
    expected = np.linalg.lstsq(augmented, np.vstack([targets, np.zeros((width, 2))]), rcond=None)[0]
    found = ridge_regression(torch.tensor(inputs), torch.tensor(targets), ridge)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-7, atol=1e-9)


def test_both_forms_of_ridge_regression_agree():
    # Rows of zeros change only the shape: the tall problem is solved by the other form.
    inputs, targets = attributes(4, 6), attributes(4, 3, seed=1)
    wide = ridge_regression(inputs, targets, 0.05)
    tall = ridge_regression(torch.cat([inputs, torch.zeros(5, 6)]), torch.cat([targets, torch.zeros(5, 3)]), 0.05)
    torch.testing.assert_close(wide, tall)


def test_ridge_regression_solves_each_problem_of_a_batch():
    inputs, targets = torch.stack([attributes(4), attributes(4, seed=1)]), torch.stack([attributes(4), attributes(4)])
    found = ridge_regression(inputs, targets, 0.05)
    for k in range(2):
        torch.testing.assert_close(found[k], ridge_regression(inputs[k], targets[k], 0.05))


def slow_loss(z, labels, embeddings, in_first, ridge_alpha, logit_scale) -> float:
    """Fit on each half with numpy, classify the other half sample by sample."""
    z, labels, embeddings, in_first = (x.detach().numpy() for x in (z, labels, embeddings, in_first))
    total = 0.0
    for half in (in_first, ~in_first):
        fit_z, fit_y = z[~half], embeddings[labels[~half]]
        predictor = np.linalg.inv(fit_z.T @ fit_z + ridge_alpha * np.eye(z.shape[1])) @ fit_z.T @ fit_y
        for i in np.flatnonzero(half):
            logits = logit_scale * embeddings @ (predictor.T @ z[i])
            total += np.log(np.exp(logits).sum()) - logits[labels[i]]
    return total / len(z)


@pytest.mark.parametrize("prototypes", [3, 20], ids=["fewer prototypes than samples", "more prototypes"])
@pytest.mark.parametrize("chosen", [{}, AUTHORS, {"ridge_alpha": 0.7, "logit_scale": 2.0}],
                         ids=["defaults", "authors", "tuned"])  # fmt: skip
@pytest.mark.parametrize("seed", range(4))
def test_loss_follows_its_equation(prototypes, chosen, seed):
    loss, z = module(**chosen), attributes(prototypes=prototypes, seed=seed)
    torch.manual_seed(seed)
    in_first, _ = class_disjoint_halves(LABELS)
    torch.manual_seed(seed)
    value = loss(z, LABELS).detach()
    constants = {"ridge_alpha": 0.05, "logit_scale": 1.0} | chosen
    assert float(value) == pytest.approx(slow_loss(z, LABELS, loss.class_embeddings, in_first, **constants), rel=1e-9)


ZERO = {
    "one class": (attributes(4), torch.full((4,), 2)),
    "a single sample": (attributes(1), torch.tensor([2])),
    "an empty batch": (attributes(0), torch.zeros(0, dtype=torch.int64)),
    "no attributes yet": (torch.zeros(8, 5, dtype=torch.float64), LABELS),
}


@pytest.mark.parametrize("case", ZERO)
def test_loss_and_gradient_are_zero_without_classes_to_predict(case):
    z, labels = ZERO[case]
    z, loss = z.clone().requires_grad_(), module()
    value = loss(z, labels)
    value.backward()
    assert float(value.detach()) == 0.0
    for grad in (z.grad, loss.class_embeddings.grad):
        assert grad is not None
        assert not grad.any()


def test_gradients_reach_every_attribute_and_every_class():
    z, loss = attributes().requires_grad_(), module()
    loss(z, LABELS).backward()
    assert z.grad.any(dim=1).all()
    assert loss.class_embeddings.grad.any(dim=1).all()


@pytest.mark.parametrize("prototypes", [2, 7])
def test_gradient_equals_finite_differences(prototypes):
    loss, labels = module(num_classes=3, width=2), torch.tensor([2, 0, 1, 2, 0])

    def value(z, embeddings):
        torch.manual_seed(0)
        return functional_call(loss, {"class_embeddings": embeddings}, (z, labels))

    z = attributes(5, prototypes).requires_grad_()
    assert torch.autograd.gradcheck(value, (z, loss.class_embeddings.detach().requires_grad_()))


def test_with_few_classes_equal_attributes_have_the_lowest_initial_loss():
    classes, width, prototypes = 16, 128, 64
    torch.manual_seed(0)
    loss = ZeroShotRegularizer(classes, width, **AUTHORS)
    squared = 2 * width / classes  # the length of a class embedding
    assert loss.class_embeddings.detach().square().sum(dim=1).mean().item() == pytest.approx(squared, rel=0.1)
    loss.class_embeddings.data = squared**0.5 * torch.eye(classes, width)  # the expected products of random embeddings
    labels = torch.arange(classes).repeat(4)
    alike = torch.full((len(labels), prototypes), 1 / prototypes)
    overlap = len(labels) / 2 / prototypes  # of an image with its half; the ridge shrinks the prediction relative to it
    logit = loss.logit_scale * squared / (classes / 2) * overlap / (overlap + loss.ridge_alpha)
    value = loss(alike, labels).item()
    assert value == pytest.approx(math.log(classes / 2) + math.log1p(math.exp(logit)), rel=1e-5)
    chosen = torch.nn.functional.one_hot(torch.randint(prototypes, (len(labels),)), prototypes)
    assert loss(0.9 * alike + 0.1 * chosen, labels).item() > value + 1


def test_compiles_to_one_graph_that_equals_eager():
    # Two classes: whichever is drawn first, the loss is the same.
    torch._dynamo.reset()
    labels, loss = torch.tensor([1, 1, 4, 4, 1, 4]), module()
    compiled = torch.compile(copy.deepcopy(loss), fullgraph=True, backend="aot_eager")
    results = []
    for layer in (loss, compiled):
        z = attributes(6).requires_grad_()
        value = layer(z, labels)
        value.backward()
        results.append((value, z.grad))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_attributes_are_computed_in_float32(dtype):
    loss, z = module().float(), attributes().to(dtype)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(z, LABELS)
    torch.manual_seed(0)
    torch.testing.assert_close(value, loss(z.float(), LABELS), rtol=0, atol=0)
    assert value.dtype is torch.float32


def test_state_survives_saving_and_loading():
    loss, fresh, saved = module(), ZeroShotRegularizer(6, 3).double(), io.BytesIO()
    torch.save(loss.state_dict(), saved)
    saved.seek(0)
    fresh.load_state_dict(torch.load(saved, weights_only=True))
    results = []
    for layer in (loss, fresh):
        torch.manual_seed(0)
        results.append(layer(attributes(), LABELS))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def test_a_large_weight_with_few_classes_warns():
    assert ZeroShotRegularizer(98, 512, **AUTHORS).warnings(0.1) == []
    assert ZeroShotRegularizer(12, 128).warnings(0.1) == []
    assert ZeroShotRegularizer(12, 128, **AUTHORS).warnings(0.002) == []
    (note,) = ZeroShotRegularizer(12, 128, **AUTHORS).warnings(0.1)
    assert "zsr.weight: 0.1" in note
    assert "12 training classes" in note
    assert "a logit of 203" in note  # 2 * 9.5 * 128 / 12


def test_equal_class_embeddings_cost_as_much_as_guessing():
    loss = module(num_classes=6)
    loss.class_embeddings.data = torch.ones_like(loss.class_embeddings)
    assert loss(attributes(), LABELS).item() == pytest.approx(loss.guess, rel=1e-12)


@pytest.mark.parametrize(("scale", "remedy"), [(1.0, "zsr.lr_multiplier=10"), (9.5, "zsr.logit_scale=1")])
def test_a_loss_above_guessing_warns_once_with_a_remedy(scale, remedy):
    loss = module(num_classes=6, logit_scale=scale)
    high, low = [2.0] * 20, [1.7] * 20
    notes = [loss.guess_warning(high[:count]) for count in range(21)]
    (note,) = [one for one in notes if one is not None]
    assert "2.00" in note
    assert "ln 6 = 1.79" in note
    assert remedy in note
    assert not any(loss.guess_warning(low[:count]) for count in range(21))
    assert loss.guess_warning([*high[:7], *low[:3]]) is None  # only the last validations count


def proxies(count: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(6 * count, 3, generator=generator, dtype=torch.float64)
    return vectors, torch.arange(6).repeat(count)


@pytest.mark.parametrize("count", [1, 3])
def test_shared_proxies_are_unit_class_embeddings(count):
    loss, z, (vectors, owners) = module(class_embeddings="proxies", logit_scale=4.0), attributes(), proxies(count)
    assert not list(loss.parameters())
    expected = []
    for label in range(6):
        total = np.zeros(3)
        for vector, owner in zip(vectors.numpy(), owners.tolist(), strict=True):
            if owner == label:
                total += vector / np.linalg.norm(vector)
        expected.append(total / np.linalg.norm(total))
    torch.manual_seed(0)
    in_first, _ = class_disjoint_halves(LABELS)
    torch.manual_seed(0)
    value = loss(z, LABELS, (vectors, owners)).item()
    slow = slow_loss(z, LABELS, torch.tensor(np.array(expected)), in_first, ridge_alpha=0.05, logit_scale=4.0)
    assert value == pytest.approx(slow, rel=1e-9)


def test_gradients_of_shared_proxies_equal_finite_differences():
    loss, labels, (vectors, owners) = module(class_embeddings="proxies"), torch.tensor([2, 0, 1, 2, 0]), proxies()

    def value(z, vectors):
        torch.manual_seed(0)
        return loss(z, labels, (vectors, owners))

    assert torch.autograd.gradcheck(value, (attributes(5).requires_grad_(), vectors.requires_grad_()))


def test_shared_proxies_are_required_and_may_be_unused():
    loss, (vectors, owners) = module(class_embeddings="proxies"), proxies()
    with pytest.raises(ValueError, match=r"^proxies: "):
        loss(attributes(), LABELS)
    assert loss(attributes(0), LABELS[:0], (vectors, owners)).item() == 0
    assert module()(attributes(), LABELS, (vectors, owners)) > 0  # own class embeddings ignore them
