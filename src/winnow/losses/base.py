"""Base class of pair losses: checks, normalization, masks, and mining."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from winnow.functional import NORMALIZERS, Normalizer
from winnow.functional.pairs import Pairs, check_batch, check_device
from winnow.registry import parameters

Normalization = Literal["unit", "ball"] | Callable[[Tensor], Tensor] | None
Mining = Callable[[Pairs], Pairs]


class PairLoss(nn.Module):
    """Base class of losses on (query, reference) pairs.

    Subclasses implement `compute_loss`. References are the batch itself unless `ref_emb` names others: proxies, a
    memory, or a gallery.

    Args:
        normalize: Normalization of all vectors before comparison. "unit" scales them to unit length, "ball" only
            shortens vectors longer than 1, None changes nothing. A function of vectors (N, d) is accepted too.
        miner: Selects pairs before the loss compares them, see `winnow.miners`. None compares all pairs.

    Attributes:
        normalizer: The function that `normalize` names.
        miner: The miner, which can be replaced.
    """

    default_references: ClassVar[str] = "batch"
    """Registry name of the references that training uses where the config names none."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Published settings by dataset."""
    has_exact_gradient: ClassVar[bool] = True
    """False for a loss with weights that have no gradient: tests then skip finite differences."""
    not_settings: ClassVar[tuple[str, ...]] = ("miner", "normalize")
    """Constructor arguments that the registry neither reads as settings nor passes from its context."""

    def __init__(self, *, normalize: Normalization = "unit", miner: Mining | None = None) -> None:
        super().__init__()
        self.normalizer: Normalizer = find_normalizer(normalize)
        self.miner: Mining | None = miner

    @abstractmethod
    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs.

        The values of pairs in neither mask are computed too. Mask them before functions with an infinite slope, such as
        `acos`, `sqrt`, and `log`: a mask afterward leaves NaN in the gradient.
        """

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        *unexpected: object,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        exclude: Tensor | None = None,
    ) -> Tensor:
        """Return the scalar loss. Without any pair it is zero and has a gradient of zero.

        Args:
            embeddings: (N, d) queries. They are normalized here, in at least float32.
            labels: (N,) integer class labels.
            unexpected: Rejected. References, masks, and miners are passed by keyword.
            ref_emb: (R, d) references. By default the embeddings themselves, without the pair of each with itself.
            ref_labels: (R,) integer class labels of the references.
            exclude: (N, R) bool, pairs to ignore, such as a query and its own copy in a memory.

        Raises:
            TypeError: For a third positional argument, and for values of another type.
            ValueError: For shapes, lengths, or devices that do not match.
        """
        if unexpected:
            raise TypeError(
                f"{type(self).__name__}: expected 2 positional arguments (embeddings, labels), got "
                f"{2 + len(unexpected)}. Pass references as ref_emb= and ref_labels=, and a miner to the constructor."
            )
        check_batch(embeddings, labels)
        own = None
        if ref_emb is None and ref_labels is None:
            ref_emb, ref_labels, own = self.find_references(embeddings, labels)
        if ref_emb is None or ref_labels is None:
            raise ValueError("ref_emb, ref_labels: only one of them is given. Pass both or neither.")
        check_references(embeddings, ref_emb, ref_labels, exclude)
        if own is not None:
            exclude = own if exclude is None else exclude | own
        same = labels[:, None] == ref_labels[None, :]
        allowed = torch.ones_like(same) if exclude is None else ~exclude
        with torch.autocast(embeddings.device.type, enabled=False):
            wide = torch.promote_types(embeddings.dtype, torch.float32)
            q, r = self.normalizer(embeddings.to(wide)), self.normalizer(ref_emb.to(wide))
            pairs = Pairs(q, r, same & allowed, ~same & allowed, labels, ref_labels)
            return self.compute_loss(pairs if self.miner is None else self.miner(pairs))

    def find_references(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the references, labels, and excluded pairs of a call without `ref_emb`."""
        return embeddings, labels, torch.eye(len(embeddings), dtype=torch.bool, device=embeddings.device)

    def extra_repr(self) -> str:
        """Return the settings as constructor arguments."""
        shown = {one.name: getattr(self, one.name) for one in parameters(type(self)) if hasattr(self, one.name)}
        names = {function: name for name, function in (*NORMALIZERS.items(), (None, keep_length))}
        shown["normalize"] = names.get(self.normalizer, self.normalizer)
        return ", ".join(f"{name}={_shown(value)}" for name, value in shown.items())


def find_normalizer(normalize: Normalization) -> Normalizer:
    """Return the function that a value of `normalize` names.

    Raises:
        ValueError: For an unknown name.
    """
    if normalize is None:
        return keep_length
    if callable(normalize):
        return normalize
    if normalize not in NORMALIZERS:
        known = ", ".join(repr(name) for name in NORMALIZERS)
        raise ValueError(f"normalize: expected {known}, None, or a function, got {normalize!r}. Choose one of them.")
    return NORMALIZERS[normalize]


def keep_length(vectors: Tensor) -> Tensor:
    """Return the vectors unchanged."""
    return vectors


def check_references(embeddings: Tensor, ref_emb: Tensor, ref_labels: Tensor, exclude: Tensor | None) -> None:
    """Raise if references or excluded pairs do not fit the embeddings.

    Raises:
        TypeError: For values of another type.
        ValueError: For shapes, lengths, or devices that do not match.
    """
    if ref_emb is not embeddings:
        check_batch(ref_emb, ref_labels, ("ref_emb", "ref_labels"))
        if ref_emb.shape[1] != embeddings.shape[1]:
            raise ValueError(
                f"ref_emb: expected {embeddings.shape[1]} dimensions to match embeddings, got {ref_emb.shape[1]}. "
                "Embed queries and references by one model."
            )
        check_device(ref_emb, embeddings.device, "ref_emb")
    if exclude is None:
        return
    if not isinstance(exclude, Tensor) or exclude.dtype is not torch.bool:
        kind = exclude.dtype if isinstance(exclude, Tensor) else type(exclude).__name__
        raise TypeError(f"exclude: expected a bool tensor (N, R), got {kind}. Convert it by .bool().")
    if exclude.shape != (len(embeddings), len(ref_emb)):
        raise ValueError(
            f"exclude: expected shape {(len(embeddings), len(ref_emb))}, got {tuple(exclude.shape)}. "
            "Pass one row per embedding and one column per reference."
        )
    check_device(exclude, embeddings.device, "exclude")


SATISFIED = 1e-5
"""Terms up to this bound are rounding in float32, such as the distance of an embedding from itself.

A backbone in 16 bits or TF32 may embed one image twice with a larger difference. No larger bound is needed for that:
pairs of an image and its own copy are few, and most occur in the first step of a CCP subproblem, whose update separates
them. Training with noise of 1e-3 on all embeddings reached the same MAP@R within 0.001, with and without such pairs.
"""


def mean_nonzero(terms: Tensor) -> Tensor:
    """Average the terms above zero. The other pairs are satisfied already."""
    # Without the bound, rounding would decide how many pairs share the loss and how equal embeddings move.
    counted = terms > SATISFIED
    return (terms * counted).sum() / counted.sum().clamp(min=1)


def _shown(value: Any) -> str:
    """Return a setting as text; of a trained one the mean of its present values."""
    return f"{float(value.detach().mean()):.4g}" if isinstance(value, Tensor) else repr(value)
