"""Contract checks for losses, poolings, references, and datasets.

Each check runs on a class, a factory, or an instance what winnow's own tests run on its components, and raises an
`AssertionError` that names the failed check and its remedy. No test framework is needed:

    from winnow.testing import check_loss

    def test_my_loss():
        check_loss(MyLoss)
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from winnow.data import ImageSet, Splits
from winnow.functional.pairs import compare_within_batch
from winnow.losses import ContrastiveLoss, MultiSimilarityLoss, PairLoss
from winnow.pooling import Pooling
from winnow.references import References
from winnow.registry import parameters

__all__ = ["check_dataset", "check_loss", "check_pooling", "check_references"]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIDE = 4
"""Height and width of the maps that poolings are checked on."""


def check_loss(
    loss: PairLoss | Callable[..., PairLoss],
    *,
    num_classes: int = 4,
    embedding_size: int = 6,
    any_labels: bool = True,
    gradcheck: bool = True,
) -> None:
    """Check that a pair loss follows the contract of `winnow.losses.PairLoss`.

    Checks values and gradients (finite, equal to finite differences), degenerate batches, zero embeddings, dtypes,
    permutations, label values, references, excluded pairs, the state dict, `repr`, and documented settings.

    Args:
        loss: Loss class, factory, or instance. A class is called with `num_classes` and `embedding_size` if its
            constructor requires them.
        num_classes: Number of classes of the batches, at least 2.
        embedding_size: Size of the embeddings, at least 2.
        any_labels: Whether labels can be any integers. Pass False for a loss with parameters of each class.
        gradcheck: Whether to compare gradients with finite differences. Pass False for a loss with random parts.
            A loss with `has_exact_gradient = False` is never compared.

    Raises:
        AssertionError: If a check fails.
    """
    with _fixed_random_numbers():
        subject = _build(loss, PairLoss, num_classes=num_classes, embedding_size=embedding_size)
        _LossChecks(subject, num_classes, embedding_size, any_labels, gradcheck).run()


def check_pooling(
    pooling: Pooling | Callable[..., Pooling], *, in_features: int = 8, weights_sum_to_one: bool = True
) -> None:
    """Check that a pooling follows the contract of `winnow.pooling.Pooling`.

    Checks output sizes, maps and tokens, masks, permutations, dtypes, gradients, weights and attributes, errors for
    wrong input, the state dict, `repr`, and documented settings. Prototypes are set first, where there are any.

    Args:
        pooling: Pooling class, factory, or instance for maps of 4 x 4 features. A class is called with
            `in_features` and `positions` if its constructor requires them.
        in_features: Channels of the features.
        weights_sum_to_one: Whether the weights of an image must sum to 1.

    Raises:
        AssertionError: If a check fails.
    """
    with _fixed_random_numbers():
        subject = _build(pooling, Pooling, in_features=in_features, positions=SIDE * SIDE)
        _PoolingChecks(subject, in_features, weights_sum_to_one).run()


def check_references(
    references: References | Callable[..., References], *, num_classes: int = 3, embedding_size: int = 4
) -> None:
    """Check that references follow the contract of `winnow.references.References`.

    Checks values and gradients over several batches, empty batches, dtypes, autocast, evaluation mode, the state dict,
    class centers, `repr`, and documented settings.

    Args:
        references: Class, factory, or instance. A class is called with `num_classes`, `embedding_size`, and
            `batch_size` if its constructor requires them.
        num_classes: Number of classes of the batches, at least 2.
        embedding_size: Size of the embeddings, at least 2.

    Raises:
        AssertionError: If a check fails.
    """
    with _fixed_random_numbers():
        sizes = {"num_classes": num_classes, "embedding_size": embedding_size, "batch_size": 2 * num_classes}
        _ReferenceChecks(_build(references, References, **sizes), num_classes, embedding_size).run()


def check_dataset(images: ImageSet | Splits, *, num_images: int = 8, class_disjoint: bool = True) -> None:
    """Check that an image set, or each split, follows the contract of `ImageSet`.

    Checks labels, class names, image names, pixels, cache keys, and selections.

    Args:
        images: Image set, or splits.
        num_images: Number of images of each set to decode, spread evenly.
        class_disjoint: Whether training, validation, and test splits may not share class names.

    Raises:
        AssertionError: If a check fails.
    """
    if isinstance(images, Splits):
        _check_splits(images, num_images, class_disjoint)
    else:
        _ImageSetChecks(images, type(images).__name__, num_images).run()


class _Checks:
    """Base class of checks: all methods named `check_*`, in order of definition."""

    def __init__(self, subject: Any) -> None:
        self.subject, self.name = subject, type(subject).__name__
        self._check = ""

    def run(self) -> None:
        """Run all checks."""
        methods = [name for kind in reversed(type(self).__mro__) for name in vars(kind) if name.startswith("check_")]
        for method in dict.fromkeys(methods):
            self._check = method.removeprefix("check_").replace("_", " ")
            try:
                getattr(self, method)()
            except AssertionError:
                raise
            except Exception as error:
                self.fail(f"raised {type(error).__name__}: {error}", "This input is valid; accept it", cause=error)

    def fail(self, problem: str, remedy: str, cause: Exception | None = None) -> NoReturn:
        """Raise an `AssertionError` that names the check."""
        raise AssertionError(f"{self.name}, check '{self._check}': {problem}. {remedy}.") from cause

    def require(self, condition: bool, problem: str, remedy: str) -> None:
        """Fail unless a condition holds."""
        if not condition:
            self.fail(problem, remedy)

    def require_finite(self, what: str, value: Tensor | None) -> None:
        """Fail unless all values of a tensor are finite."""
        if value is not None and not value.isfinite().all():
            self.fail(f"{what} is not finite", "Avoid divisions by zero, overflow, and roots and logarithms of 0")

    def require_close(self, what: str, value: Tensor, expected: Tensor, remedy: str, tolerance: float = 1e-6) -> None:
        """Fail unless two tensors are equal up to rounding."""
        if value.shape != expected.shape:
            self.fail(f"{what}: shape {tuple(value.shape)} instead of {tuple(expected.shape)}", remedy)
        value, expected = value.double(), expected.double()
        if not torch.allclose(value, expected, rtol=tolerance, atol=tolerance):
            self.fail(f"{what}: differs by up to {float((value - expected).abs().max()):.3g}", remedy)


class _ModuleChecks(_Checks):
    """Checks of a module with settings."""

    subject: nn.Module

    def fresh(self, dtype: torch.dtype | None = None) -> Any:
        """Return a copy in its present state."""
        module = copy.deepcopy(self.subject)
        return module if dtype is None else module.to(dtype)

    def check_documented_settings(self) -> None:
        """The docstring has an `Args:` line for each keyword-only argument.

        The line is the help text of the config.
        """
        missing = [one.name for one in parameters(type(self.subject)) if not one.meaning]
        self.require(not missing, f"no description of {', '.join(missing)}", "Add lines under 'Args:' of the class")

    def check_repr(self) -> None:
        """`repr` shows each setting; options that are off by default may be omitted."""
        shown, settings = repr(self.subject), parameters(type(self.subject))
        missing = [one.name for one in settings if f"{one.name}=" not in shown and one.default is not False]
        self.require(
            not missing, f"repr has no {', '.join(f'{name}=' for name in missing)}", "Return them from extra_repr"
        )


class _LossChecks(_ModuleChecks):
    """Checks of a pair loss."""

    subject: PairLoss

    def __init__(
        self, subject: PairLoss, num_classes: int, embedding_size: int, any_labels: bool, gradcheck: bool
    ) -> None:
        super().__init__(subject)
        self.size, self.any_labels, self.gradcheck = embedding_size, any_labels, gradcheck
        self.labels = torch.arange(num_classes).repeat_interleave(2)
        self.within_batch = subject.default_references == "batch"

    def batch(self, labels: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """Return embeddings of a batch, the same in each call."""
        count = len(self.labels if labels is None else labels)
        return _numbers(count, self.size).to(dtype).requires_grad_()

    def compute(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss within a batch, and its gradient."""
        loss = self.fresh(torch.float64 if embeddings.dtype is torch.float64 else None)
        value = compare_within_batch(loss, embeddings, labels)
        self.require(
            isinstance(value, Tensor) and value.shape == (),
            f"the value is {_describe(value)}",
            "Return a scalar tensor, such as a mean",
        )
        self.require_finite("the value", value)
        self.require(value.requires_grad, "the value has no gradient", "Compute it from the embeddings without detach")
        (grad,) = torch.autograd.grad(value, [embeddings], allow_unused=True)
        if grad is None:
            grad = torch.zeros_like(embeddings)
        self.require_finite("the gradient", grad)
        return value.detach(), grad

    def check_value_and_gradient(self) -> None:
        """The value of a batch is a finite scalar whose gradient is not zero."""
        _, grad = self.compute(self.batch(), self.labels)
        self.require(bool(grad.any()), "the gradient of a random batch is zero", "Compute the loss without detach")

    def check_finite_differences(self) -> None:
        """The gradient equals finite differences in float64."""
        if not (self.gradcheck and self.subject.has_exact_gradient):
            return
        loss, references = self.fresh(torch.float64), 0.5 * _numbers(len(self.labels), self.size, seed=1)

        def compute(embeddings: Tensor, references: Tensor) -> Tensor:
            value: Tensor = loss(embeddings, self.labels, ref_emb=references, ref_labels=self.labels)
            return value

        correct = torch.autograd.gradcheck(compute, (self.batch(), references.requires_grad_()), raise_exception=False)
        self.require(correct, "the gradient does not match the value", "Do not detach or round inside compute_loss")

    def check_degenerate_batches(self) -> None:
        """Batches without positive or negative pairs have a finite value and gradient."""
        for labels in (self.labels[:0], self.labels[:1], self.labels * 0, self.labels[::2]):
            self.compute(self.batch(labels), labels)

    def check_zero_and_equal_embeddings(self) -> None:
        """Zero and equal embeddings have finite gradients in each dtype."""
        for dtype in DTYPES:
            for scale in (torch.zeros(1), torch.ones(1)):
                rows = (scale * torch.ones(len(self.labels), self.size)).to(dtype).requires_grad_()
                self.compute(rows, self.labels)

    def check_dtypes(self) -> None:
        """Each floating-point dtype is accepted; low precision is computed in float32."""
        expected, _ = self.compute(self.batch(dtype=torch.bfloat16).detach().double().requires_grad_(), self.labels)
        for dtype in DTYPES:
            embeddings = self.batch(dtype=torch.bfloat16).detach().to(dtype).requires_grad_()
            value, grad = self.compute(embeddings, self.labels)
            self.require(grad.dtype is dtype, f"the gradient of {dtype} is {grad.dtype}", "Keep the dtype of the input")
            self.require_close(f"value in {dtype}", value, expected, "Compute in at least float32", 1e-3)

    def check_permutation(self) -> None:
        """The order of the batch does not change the value."""
        order = torch.arange(len(self.labels)).roll(3)
        value, _ = self.compute(self.batch(), self.labels)
        permuted, _ = self.compute(self.batch().detach()[order].requires_grad_(), self.labels[order])
        self.require_close("permuted batch", permuted, value, "Do not depend on the order of pairs")

    def check_label_values(self) -> None:
        """Labels are any integers, also in a strided tensor."""
        labels = self.labels
        if self.any_labels:
            labels = torch.tensor([7, -3, 2**62, 0, *range(100, 100 + len(labels))])[labels]
        strided = torch.stack([labels, labels + 1], dim=1)[:, 0]
        value, _ = self.compute(self.batch(), self.labels)
        renamed, _ = self.compute(self.batch(), strided)
        self.require_close("other label values", renamed, value, "Compare labels only for equality")

    def check_references(self) -> None:
        """The batch as `ref_emb`, without self-pairs, equals the default references."""
        if not self.within_batch:
            return
        value: Tensor = self.fresh(torch.float64)(self.batch(), self.labels)
        explicit, _ = self.compute(self.batch(), self.labels)
        self.require_close("ref_emb=embeddings", value.detach(), explicit, "Use pairs.references and both masks")

    def check_excluded_pairs(self) -> None:
        """A reference whose pairs are all excluded does not change the value."""
        if not self.within_batch:
            return
        loss, count = self.fresh(torch.float64), len(self.labels)
        references, other = _numbers(count, self.size, seed=1), _numbers(count, self.size, seed=1)
        other[0] = _numbers(1, self.size, seed=2)[0]
        exclude = torch.zeros(count, count, dtype=torch.bool)
        exclude[:, 0] = True
        values = [
            loss(self.batch(), self.labels, ref_emb=one, ref_labels=self.labels, exclude=exclude).detach()
            for one in (references, other)
        ]
        self.require_close("exclude", values[1], values[0], "Use only pairs in pairs.positives and pairs.negatives")

    def check_state_dict(self) -> None:
        """A loss with a loaded state computes the same value."""
        loaded = self.fresh()
        loaded.load_state_dict(copy.deepcopy(self.subject.state_dict()))
        arguments = self.batch(dtype=torch.float32), self.labels
        value = compare_within_batch(self.fresh(), *arguments).detach()
        self.require_close("loaded state", compare_within_batch(loaded, *arguments).detach(), value, "Use buffers")


class _PoolingChecks(_ModuleChecks):
    """Checks of a pooling."""

    subject: Pooling

    def __init__(self, subject: Pooling, in_features: int, weights_sum_to_one: bool) -> None:
        super().__init__(subject)
        guide = subject.guide_features or in_features
        self.channels = subject.in_features or in_features
        self.map, self.guide = _numbers(6, self.channels, SIDE, SIDE).abs(), _numbers(6, guide, SIDE, SIDE, seed=1)
        self.weights_sum_to_one = weights_sum_to_one
        set_prototypes = getattr(subject, "init_prototypes", None)
        if callable(set_prototypes) and not getattr(subject, "prototypes_ready", True):
            size = len(subject.memory) if isinstance(subject.memory, Tensor) else 128
            channels = guide if subject.needs_guide else self.channels
            set_prototypes(_numbers(size, 2, channels, seed=2).float())

    def pool(self, features: Tensor, mask: Tensor | None = None, guide: Tensor | None = None, **more: Any) -> Any:
        """Return vectors, weights, and attributes in evaluation mode."""
        module = more.pop("module", None) or self.fresh(features.dtype if features.dtype.itemsize > 2 else None)
        training = more.pop("training", False)
        if self.subject.needs_guide:
            more["guide"] = self.guide.to(features.dtype) if guide is None else guide
        return module.train(training)(features, mask, return_details=True, **more)

    def check_output(self) -> None:
        """Vectors have the announced size and the dtype of the input, and are finite."""
        size = (len(self.map), self.subject.output_width(self.channels))
        for dtype in DTYPES:
            vectors = self.pool(self.map.to(dtype))[0]
            self.require(
                tuple(vectors.shape) == size and vectors.dtype is dtype,
                f"expected {size} {dtype}, got {_describe(vectors)}",
                "Return (B, output_width(d)) in the dtype of the features",
            )
            self.require_finite(f"the vector in {dtype}", vectors)

    def check_tokens_equal_maps(self) -> None:
        """Tokens (B, H W, C) give the same vectors as maps (B, C, H, W)."""
        if self.subject.layout == "grid":
            return
        tokens = self.pool(self.map.flatten(2).mT, guide=self.guide.flatten(2).mT)[0]
        self.require_close("tokens", tokens, self.pool(self.map)[0], "Implement pool on tokens only")

    def check_masks(self) -> None:
        """Masked features are never read; a mask equals a smaller set."""
        if self.subject.layout == "fixed":
            return
        mask = torch.ones(len(self.map), SIDE, SIDE, dtype=torch.bool)
        mask[:, SIDE // 2 :] = False
        spoiled = torch.where(mask[:, None], self.map, torch.nan)
        masked = self.pool(spoiled, mask)[0]
        self.require_finite("the vector of masked NaN features", masked)
        self.require_close("masked values", masked, self.pool(self.map, mask)[0], "Replace masked features by zeros")
        if self.subject.layout == "set":
            half = self.pool(self.map[:, :, : SIDE // 2], guide=self.guide[:, :, : SIDE // 2].to(self.map.dtype))[0]
            self.require_close("masked half", masked, half, "Give masked features a weight of zero")

    def check_permutation(self) -> None:
        """The order of features does not matter to a pooling with layout "set"."""
        if self.subject.layout != "set":
            return
        order = torch.arange(SIDE * SIDE).roll(5)
        tokens, guide = self.map.flatten(2).mT[:, order], self.guide.flatten(2).mT[:, order]
        vectors = self.pool(tokens, guide=guide)[0]
        self.require_close("permuted features", vectors, self.pool(self.map)[0], 'Set layout = "grid" or "fixed"')

    def check_images_are_independent(self) -> None:
        """In evaluation mode an image's vector does not depend on the batch."""
        vectors = self.pool(self.map[:2], guide=self.guide[:2])[0]
        self.require_close(
            "smaller batch", vectors, self.pool(self.map)[0][:2], "Use batch statistics in training only"
        )

    def check_gradient(self) -> None:
        """Features have a finite gradient that is not zero.

        Features of zero have a finite gradient.
        """
        for scale in (1.0, 0.0):
            features = (scale * self.map).float().requires_grad_()
            vectors = self.pool(features, training=True)[0]
            (grad,) = torch.autograd.grad((vectors * _numbers(*vectors.shape, seed=3).float()).sum(), [features])
            self.require_finite("the gradient", grad)
            self.require(bool(scale == 0 or grad.any()), "the gradient is zero", "Compute vectors without detach")

    def check_weights(self) -> None:
        """Weights are (B, n), not negative, and sum to 1."""
        weights = self.pool(self.map)[1]
        if not self.subject.has_weights:
            return
        shape = (len(self.map), SIDE * SIDE)
        self.require(
            isinstance(weights, Tensor) and weights.shape == shape,
            f"expected weights {shape}, got {_describe(weights)}",
            "Return one weight per feature, or set has_weights = False",
        )
        self.require(bool((weights >= 0).all()), "a weight is negative", "Return display_weights(values, uniform)")
        if self.weights_sum_to_one:
            self.require_close(
                "sum of weights", weights.sum(dim=1), torch.ones(len(weights)), "Divide weights by their sum", 1e-4
            )

    def check_attributes(self) -> None:
        """Attributes are (B, m) and sum to 1."""
        if not self.subject.has_attributes:
            return
        attributes = self.pool(self.map)[2]
        self.require(
            isinstance(attributes, Tensor) and attributes.dim() == 2 and len(attributes) == len(self.map),
            f"attributes are {_describe(attributes)}",
            "Return (B, m), or set has_attributes = False",
        )
        self.require_close(
            "sum of attributes", attributes.sum(dim=1), torch.ones(len(attributes)), "Divide by the sum", 1e-4
        )

    def check_wrong_shapes(self) -> None:
        """A matrix and integers are rejected."""
        for features, error in ((torch.rand(2, 3), ValueError), (torch.ones(2, self.channels, 4, 4).int(), TypeError)):
            try:
                self.fresh()(features)
            except error:
                continue
            self.fail(f"{_describe(features)} does not raise {error.__name__}", "Implement pool, not forward")

    def check_state_dict(self) -> None:
        """A pooling with a loaded state computes the same vectors."""
        loaded = self.fresh()
        loaded.load_state_dict(copy.deepcopy(self.subject.state_dict()))
        features = self.map.float()
        vectors = self.pool(features, module=self.fresh())[0]
        self.require_close("loaded state", self.pool(features, module=loaded)[0], vectors, "Use buffers for state")


class _ReferenceChecks(_ModuleChecks):
    """Checks of references."""

    subject: References

    def __init__(self, subject: References, num_classes: int, embedding_size: int) -> None:
        super().__init__(subject)
        self.size, self.labels = embedding_size, torch.arange(num_classes).repeat_interleave(2)
        self.losses = [MultiSimilarityLoss(), ContrastiveLoss()]

    def batch(self, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the embeddings of a training step."""
        return _numbers(len(self.labels), self.size, seed=step).to(dtype).requires_grad_()

    def compute(self, references: References, embeddings: Tensor, loss: PairLoss | None = None) -> Tensor:
        """Return the value of a batch, after checks of the value and its gradient."""
        value: Tensor = references(loss or self.losses[0], embeddings, self.labels[: len(embeddings)])
        self.require(
            isinstance(value, Tensor) and value.shape == (),
            f"the value is {_describe(value)}",
            "Return a scalar tensor",
        )
        self.require_finite("the value", value)
        (grad,) = torch.autograd.grad(value, [embeddings], retain_graph=True)
        self.require_finite("the gradient", grad)
        return value

    def check_several_batches(self) -> None:
        """Values and gradients are finite for several batches, losses, and dtypes."""
        for loss in self.losses:
            for dtype in DTYPES:
                references = self.fresh()
                for step in range(4):
                    self.compute(references, self.batch(step, dtype), loss)

    def check_gradients_of_parameters(self) -> None:
        """Parameters get finite gradients; buffers have none."""
        references = self.fresh()
        self.compute(references, self.batch(0)).backward()  # type: ignore[no-untyped-call]
        for name, parameter in references.named_parameters():
            self.require(
                parameter.grad is not None or not parameter.requires_grad,
                f"parameter {name} has no gradient",
                "Use it in forward, or register it as a buffer",
            )
            self.require_finite(f"the gradient of {name}", parameter.grad)
        for name, buffer in references.named_buffers():
            self.require(not buffer.requires_grad, f"buffer {name} has a gradient", "Store embeddings.detach()")

    def check_empty_batch(self) -> None:
        """An empty batch has the value 0."""
        value = self.compute(self.fresh(), self.batch(0)[:0].detach().requires_grad_())
        self.require(float(value.detach()) == 0, "the value of an empty batch is not 0", "Return the loss unchanged")

    def check_state_dict(self) -> None:
        """References with a loaded state continue as the saved ones."""
        references, loaded = self.fresh(), self.fresh()
        for step in range(3):
            self.compute(references, self.batch(step))
        loaded.load_state_dict(copy.deepcopy(references.state_dict()))
        for step in range(3, 6):
            value, expected = self.compute(loaded, self.batch(step)), self.compute(references, self.batch(step))
            self.require_close("loaded state", value.detach(), expected.detach(), "Keep all state in buffers", 0)

    def check_evaluation(self) -> None:
        """In evaluation mode a batch does not change the state."""
        references = self.fresh().eval()
        before = copy.deepcopy(references.state_dict())
        self.compute(references, self.batch(0))
        for key, value in references.state_dict().items():
            self.require(torch.equal(value, before[key]), f"{key} changed", "Update state only if self.training")

    def check_autocast(self) -> None:
        """Autocast changes no value."""
        expected = self.compute(self.fresh(), self.batch(0))
        with torch.autocast("cpu", torch.bfloat16):
            value = self.compute(self.fresh(), self.batch(0))
        self.require_close("autocast", value.detach(), expected.detach(), "Disable autocast for matrix products")

    def check_class_centers(self) -> None:
        """Class centers are None, or vectors (P, d) with labels (P,)."""
        centers = self.subject.class_centers()
        if centers is None:
            return
        vectors, labels = centers
        self.require(
            vectors.dim() == 2 and vectors.shape[1] == self.size and labels.shape == (len(vectors),),
            f"class centers are {_describe(vectors)} with labels {_describe(labels)}",
            "Return vectors (P, d) and labels (P,)",
        )

    def check_warnings(self) -> None:
        """`warnings` returns texts."""
        texts = self.subject.warnings(100, [2] * (int(self.labels.max()) + 1))
        valid = isinstance(texts, list) and all(isinstance(one, str) for one in texts)
        self.require(valid, f"warnings returns {texts!r}", "Return a list of strings")


class _ImageSetChecks(_Checks):
    """Checks of one image set."""

    subject: ImageSet

    def __init__(self, subject: ImageSet, name: str, num_images: int) -> None:
        super().__init__(subject)
        self.name = name
        count = len(getattr(subject, "labels", ()))
        self.indices = sorted({int(i) for i in np.linspace(0, count - 1, num_images)}) if count else []

    def check_labels(self) -> None:
        """Labels are int64 indices into `class_names`."""
        labels, names = self.subject.labels, self.subject.class_names
        self.require(
            isinstance(labels, np.ndarray) and labels.dtype == np.int64 and labels.ndim == 1,
            f"labels are {_describe(labels)}",
            "Set self.labels to a NumPy array (N,) of int64",
        )
        self.require(len(labels) > 0, "there are no images", "Pass at least one image")
        self.require(
            bool(((labels >= 0) & (labels < len(names))).all()),
            f"labels from {labels.min()} to {labels.max()} for {len(names)} class names",
            "Number the classes 0, 1, ... in the order of class_names",
        )

    def check_class_names(self) -> None:
        """Class names are different strings in a tuple."""
        names = self.subject.class_names
        valid = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
        self.require(valid, "class_names is no tuple of strings", "Set self.class_names = tuple(map(str, names))")
        self.require(len(set(names)) == len(names), "class names repeat", "Give each class a unique name")

    def check_length(self) -> None:
        """`len` is the number of labels."""
        self.require(
            len(self.subject) == len(self.subject.labels), "len() is not the number of labels", "Do not override it"
        )

    def check_pixels(self) -> None:
        """`read` returns the same RGB image in each call."""
        for index in self.indices:
            image, again = self.subject.read(index), self.subject.read(index)
            self.require(
                getattr(image, "mode", None) == "RGB" and min(image.size) > 0,
                f"read({index}) returns {_describe(image)}",
                'Return a PIL image by .convert("RGB")',
            )
            self.require(
                image.tobytes() == again.tobytes(),
                f"read({index}) returns other pixels when called again",
                "Seed random parts by the index, and augment in transforms",
            )

    def check_names(self) -> None:
        """Each image has a unique name."""
        names = [self.subject.name(index) for index in self.indices]
        valid = all(isinstance(name, str) and name for name in names)
        self.require(valid, "name() returns no text", "Return a path or a generated name")
        self.require(len(set(names)) == len(names), "image names repeat", "Include the index in generated names")

    def check_cache_keys(self) -> None:
        """Each image has a stable and unique cache key."""
        keys = [self.subject.cache_key(index) for index in self.indices]
        self.require(all(isinstance(key, str) for key in keys), "cache_key() returns no text", "Return a string")
        self.require(
            keys == [self.subject.cache_key(index) for index in self.indices],
            "cache_key() changes between calls",
            "Derive it from the file or from a checksum of the pixels",
        )
        self.require(len(set(keys)) == len(keys), "cache keys repeat", "Include the name of the image")

    def check_selections(self) -> None:
        """`select` and `select_classes` keep names and labels."""
        index = self.indices[-1]
        label = int(self.subject.labels[index])
        one, of_class = self.subject.select([index]), self.subject.select_classes([label])
        self.require(
            one.name(0) == self.subject.name(index) and int(one.labels[0]) == label,
            "select() returns another image",
            "Do not override it",
        )
        self.require(
            of_class.class_names == (self.subject.class_names[label],) and not of_class.labels.any(),
            "select_classes() returns other classes",
            "Do not override it",
        )


def _check_splits(splits: Splits, num_images: int, class_disjoint: bool) -> None:
    """Check each split and that their classes are disjoint."""
    named = {name: getattr(splits, name) for name in ("train", "val", "test", "gallery")}
    for name, images in named.items():
        if images is not None:
            _ImageSetChecks(images, f"{name} ({type(images).__name__})", num_images).run()
    if splits.gallery is not None and splits.test is not None and splits.gallery.class_names != splits.test.class_names:
        raise AssertionError(
            "Splits, check 'gallery': class names differ from the test split. Use the same labels for both."
        )
    if not class_disjoint:
        return
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        one, other = named[first], named[second]
        if one is None or other is None or one is other:
            continue
        if shared := sorted(set(one.class_names) & set(other.class_names)):
            raise AssertionError(
                f"Splits, check 'class-disjoint': {first} and {second} share {len(shared)} classes, such as "
                f"'{shared[0]}'. Split by class, or pass class_disjoint=False."
            )


def _build(thing: Any, base: Any, **context: Any) -> Any:
    """Return an instance of a class or factory, or the instance itself."""
    if not isinstance(thing, nn.Module):
        accepted = inspect.signature(thing).parameters.values()
        required = [
            one.name for one in accepted
            if one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]  # fmt: skip
        unknown = [name for name in required if name not in context]
        if unknown:
            raise AssertionError(
                f"{getattr(thing, '__name__', thing)}, check 'constructor': requires {', '.join(unknown)}. "
                "Pass an instance, or a factory without arguments."
            )
        thing = thing(**{name: context[name] for name in required})
    if not isinstance(thing, base):
        raise AssertionError(
            f"{type(thing).__name__}, check 'base class': no {base.__name__}. Derive the class from {base.__name__}."
        )
    return copy.deepcopy(thing)


@contextmanager
def _fixed_random_numbers() -> Iterator[None]:
    """Seed random numbers, and restore the state of the caller at the end."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _numbers(*shape: int, seed: int = 0) -> Tensor:
    """Return float64 numbers of a normal distribution."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _describe(value: object) -> str:
    """Return dtype and shape of an array, or the type of another value."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{value.dtype} {tuple(value.shape)}"
    mode = getattr(value, "mode", None)
    return type(value).__name__ + (f" of mode {mode}" if mode is not None else "")
