"""Losses on own or given proxies: Proxy-Anchor, Proxy-NCA++, SoftTriple."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from winnow.functional.pairs import Pairs, check_class_labels
from winnow.losses.base import Mining, Normalization, PairLoss
from winnow.losses.softmax import log_one_plus_sum_exp


class ProxyLoss(PairLoss):
    """Base class of losses on embeddings and trainable proxies of their classes.

    With `num_classes` and `embedding_size` the loss owns its proxies: they are parameters of it, and an optimizer needs
    `loss.parameters()`. Without them each call must name its references by `ref_emb` and `ref_labels`, as training by a
    config does.

    Args:
        num_classes: Number of classes C; labels are then 0 .. C - 1. None for a loss without proxies.
        embedding_size: Size of the embeddings. None for a loss without proxies.
        proxies_per_class: Proxies of each class, at least 1.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.

    Attributes:
        proxies: (C * proxies_per_class, embedding_size) parameter, ordered by class; None without proxies.
        proxy_labels: (C * proxies_per_class,) their classes; None without proxies.

    Raises:
        ValueError: If only one of the two sizes is given, or a size is below 1.
    """

    default_references: ClassVar[str] = "proxies"
    not_settings: ClassVar[tuple[str, ...]] = (
        *PairLoss.not_settings, "num_classes", "embedding_size", "proxies_per_class",
    )  # fmt: skip
    proxies: nn.Parameter | None
    proxy_labels: Tensor | None

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        *,
        proxies_per_class: int = 1,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(normalize=normalize, miner=miner)
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.proxies_per_class = proxies_per_class
        for name in ("num_classes", "embedding_size", "proxies_per_class"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name}: expected at least 1, got {size}. Pass a positive number.")
        if num_classes is None or embedding_size is None:
            if num_classes != embedding_size:
                raise ValueError("num_classes, embedding_size: only one of them is given. Pass both or neither.")
            self.register_parameter("proxies", None)
            self.register_buffer("proxy_labels", None, persistent=False)
            return
        # Unit length in expectation: the loss normalizes them, and a step is relative to their length.
        proxies = torch.randn(num_classes * proxies_per_class, embedding_size) / embedding_size**0.5
        self.proxies = nn.Parameter(proxies)
        labels = torch.arange(num_classes).repeat_interleave(proxies_per_class)
        self.register_buffer("proxy_labels", labels, persistent=False)

    def find_references(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the proxies and their labels.

        Raises:
            ValueError: If the loss has no proxies, a label is not one of their classes, or sizes differ.
        """
        if self.proxies is None or self.proxy_labels is None or self.num_classes is None:
            raise ValueError(
                f"{type(self).__name__}: no proxies to compare with. "
                "Pass num_classes and embedding_size to the constructor, or ref_emb and ref_labels to the call."
            )
        check_class_labels(labels, self.num_classes)
        if embeddings.shape[1] != self.embedding_size:
            raise ValueError(
                f"embeddings: expected {self.embedding_size} dimensions (embedding_size), got {embeddings.shape[1]}. "
                f"Set embedding_size={embeddings.shape[1]}."
            )
        return self.proxies, self.proxy_labels, None

    def extra_repr(self) -> str:
        """Return the sizes of the proxies, if any, and the settings."""
        if self.proxies is None:
            return super().extra_repr()
        more = f", proxies_per_class={self.proxies_per_class}" if self.proxies_per_class > 1 else ""
        return f"{self.num_classes}, {self.embedding_size}{more}, {super().extra_repr()}"


class ProxyAnchorLoss(ProxyLoss):
    r"""Proxy-Anchor loss: each proxy is an anchor for all embeddings of the batch.

    $$L = \frac1{|R^+|} \sum_{r \in R^+} \log\big(1 + \sum_{q \in P_r} e^{-\alpha (s_{qr} - \delta)}\big)
        + \frac1{|R|} \sum_{r \in R} \log\big(1 + \sum_{q \in N_r} e^{\alpha (s_{qr} + \delta)}\big)$$

    $R^+$ are the references with a positive query. $R$ are those with a negative query; in a batch of one class, all.

    Reference: Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020.

    Use when: classes have many images each and training should be fast and stable. The loss does not need several
    images of a class in a batch. Proxies must learn faster than the network:
    `train.lr_multipliers={'references.proxies': 100}`. With very many small classes (SOP), losses over pairs of images
    are often better.

    Differences: the paper divides the second sum by the number of all proxies, as PML `ProxyAnchorLoss` does. That is
    the same number for proxies, unless a miner or `exclude` removes pairs. PML rejects `ref_emb` and uses one proxy
    per class.

    Args:
        num_classes: Number of classes of own proxies; None for a loss that is called with `ref_emb`.
        embedding_size: Size of own proxies; None for a loss that is called with `ref_emb`.
        margin: Cosine similarity. Positives above it and negatives below minus it contribute little.
        alpha: Sharpness, above 0.
        proxies_per_class: Own proxies of each class, at least 1.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"alpha": 32.0, "margin": 0.1},
        "cars": {"alpha": 32.0, "margin": 0.1},
        "sop": {"alpha": 32.0, "margin": 0.1},
        "inshop": {"alpha": 32.0, "margin": 0.1},
    }

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        *,
        margin: float = 0.1,
        alpha: float = 32.0,
        proxies_per_class: int = 1,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(
            num_classes, embedding_size, proxies_per_class=proxies_per_class, normalize=normalize, miner=miner
        )
        self.margin, self.alpha = margin, alpha

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        s = pairs.similarities().mT
        attract = log_one_plus_sum_exp(-self.alpha * (s - self.margin), pairs.positives.mT)
        repel = log_one_plus_sum_exp(self.alpha * (s + self.margin), pairs.negatives.mT)
        with_positive, with_negative = pairs.positives.any(dim=0), pairs.negatives.any(dim=0)
        # The proxy of the only class of a batch has no negative query, but the paper counts it.
        one_class = (pairs.labels == pairs.labels[:1]).all()
        repelled = with_negative | (with_positive & one_class)
        return attract.sum() / with_positive.sum().clamp(min=1) + repel.sum() / repelled.sum().clamp(min=1)


class ProxyNCALoss(ProxyLoss):
    r"""Proxy-NCA++ loss: softmax over all proxies, with the own class as the target.

    $$L = \operatorname{mean}_q -\log \frac{\sum_{r \in P_q} e^{h_{qr}}}{\sum_{r \in P_q \cup N_q} e^{h_{qr}}}, \qquad
      h_{qr} = -\frac{\lVert q - r \rVert^2}{T} \;\text{ or }\; \frac{q^\top r}{T}$$

    The mean is over the queries that have a positive.

    Reference: Teh, DeVries, Taylor, "ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component Analysis",
    ECCV 2020.

    Use when: a classifier's view of the classes fits. It is a softmax over proxies, without a margin, and the low
    temperature matters. Proxies must learn faster than the network: `train.lr_multipliers={'references.proxies': 100}`.

    Differences: the authors' code of [GSP] and [CCP] takes the dot product, which for unit vectors equals the squared
    distance with twice the temperature; the presets use it. PML `ProxyNCALoss(softmax_scale=1 / temperature)` is equal
    for the squared distance, and its default scale is 1.

    Args:
        num_classes: Number of classes of own proxies; None for a loss that is called with `ref_emb`.
        embedding_size: Size of own proxies; None for a loss that is called with `ref_emb`.
        temperature: Temperature T of the softmax, above 0.
        similarity: Minus the "squared_distance" (the paper), or the "dot" product.
        proxies_per_class: Own proxies of each class, at least 1.
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.

    Raises:
        ValueError: If the temperature is not above 0.
    """

    aliases: ClassVar[Mapping[str, str]] = {"form": "similarity"}
    value_aliases: ClassVar[Mapping[str, Mapping[Any, Any]]] = {"similarity": {"squared": "squared_distance"}}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"temperature": 0.11, "similarity": "dot"},
        "cars": {"temperature": 0.11, "similarity": "dot"},
        "sop": {"temperature": 0.11, "similarity": "dot"},
        "inshop": {"temperature": 0.11, "similarity": "dot"},
    }

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        *,
        temperature: float = 0.11,
        similarity: Literal["squared_distance", "dot"] = "squared_distance",
        proxies_per_class: int = 1,
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(
            num_classes, embedding_size, proxies_per_class=proxies_per_class, normalize=normalize, miner=miner
        )
        if temperature <= 0:
            raise ValueError(f"temperature: expected a value above 0, got {temperature}. [GSP] uses 0.11.")
        _check_choice("similarity", similarity, ("squared_distance", "dot"))
        self.temperature, self.similarity = temperature, similarity

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        h = pairs.similarities()
        if self.similarity == "squared_distance":
            h = 2 * h - pairs.queries.square().sum(dim=1, keepdim=True) - pairs.references.square().sum(dim=1)
        return cross_entropy_of_positives(h / self.temperature, pairs)


class SoftTripleLoss(ProxyLoss):
    r"""SoftTriple loss: softmax over classes, each represented by several centers.

    $$S_{qc} = \sum_{r \in c} \frac{e^{s_{qr} / \gamma}}{\sum_{r' \in c} e^{s_{qr'} / \gamma}}\, s_{qr}, \qquad
      L = \operatorname{mean}_q -\log \frac{e^{\lambda (S_{q y_q} - \delta)}}
        {e^{\lambda (S_{q y_q} - \delta)} + \sum_{c \ne y_q} e^{\lambda S_{qc}}}
        + \tau\, \frac{\sum_c \sum_{r < r' \in c} \lVert r - r' \rVert_2}{\sum_c K_c (K_c - 1)}$$

    The mean is over the queries that have a positive; $K_c$ is the number of references of class $c$. The last term
    merges the centers of a class, so a class keeps as many as it needs; centers that coincide stay where they are. It
    covers all pairs of classes with up to 32 references, or as many as there are queries. Of larger classes it covers
    pairs that are at most that far apart in order.

    Reference: Qian et al., "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", ICCV 2019.

    Use when: a class has several distinct appearances, such as a product seen from all sides. [Thesis] uses 10 centers
    on CUB and Cars and 4 on SOP and In-shop (`references.proxies_per_class`). One center gives the normalized softmax
    with a margin. Proxies must learn faster than the network: `train.lr_multipliers={'references.proxies': 100}`.

    Differences: the authors' code of [CCP] uses minus the distance and, as released, splits the classes wrongly. The
    presets are in units of the cosine: the paper's for CUB and In-shop, [MLRC]'s for Cars and SOP. There gamma is so
    large that all centers of a class weigh nearly the same. PML `SoftTripleLoss(centers_per_class, la, gamma, margin)`
    is equal without the last term; `la` is `scale` here.

    Args:
        num_classes: Number of classes of own proxies; None for a loss that is called with `ref_emb`.
        embedding_size: Size of own proxies; None for a loss that is called with `ref_emb`.
        proxies_per_class: Own proxies (centers) of each class, at least 1.
        scale: Factor lambda on the similarities of classes, above 0.
        gamma: Temperature of the softmax over the centers of a class, above 0. A small value counts the nearest alone.
        tau: Weight of the term that merges centers, at least 0.
        margin: Cosine similarity by which the class of the query must lead.
        similarity: The "cosine", or minus the "distance".
        normalize: Normalization before comparison: "unit", "ball", None, or a function.
        miner: Selects the pairs to compare. None compares all pairs.

    Raises:
        ValueError: If gamma is not above 0.
    """

    aliases: ClassVar[Mapping[str, str]] = {"form": "similarity"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cub": {"scale": 20.0, "gamma": 0.1, "tau": 0.2, "margin": 0.01},
        "cars": {"scale": 17.69, "gamma": 19.18, "tau": 0.0669, "margin": 0.3588},
        "sop": {"scale": 100.0, "gamma": 47.9, "tau": 0.2, "margin": 0.3145},
        "inshop": {"scale": 20.0, "gamma": 0.1, "tau": 0.2, "margin": 0.01},
    }

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        *,
        proxies_per_class: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        tau: float = 0.2,
        margin: float = 0.01,
        similarity: Literal["cosine", "distance"] = "cosine",
        normalize: Normalization = "unit",
        miner: Mining | None = None,
    ) -> None:
        super().__init__(
            num_classes, embedding_size, proxies_per_class=proxies_per_class, normalize=normalize, miner=miner
        )
        if gamma <= 0:
            raise ValueError(f"gamma: expected a value above 0, got {gamma}. The paper uses 0.1.")
        _check_choice("similarity", similarity, ("cosine", "distance"))
        self.scale, self.gamma, self.tau, self.margin, self.similarity = scale, gamma, tau, margin, similarity

    def compute_loss(self, pairs: Pairs) -> Tensor:
        """Return the scalar loss of the pairs."""
        s = pairs.similarities() if self.similarity == "cosine" else -pairs.distances()
        if s.shape[1] == 0:
            return s.sum()
        counted = pairs.positives | pairs.negatives
        # A class uses the column of its first reference; the other columns are empty.
        column, own = class_columns(pairs.reference_labels, pairs.labels)
        similarity, present = softmax_means(s, s / self.gamma, counted, column)
        complete = pairs.positives.any(dim=1)
        logits = self.scale * (similarity - self.margin * own.to(s.dtype))
        # A query without a positive takes all columns: finite, and not counted.
        logits = logits.masked_fill(~(present | ~complete[:, None]), -torch.inf)
        terms = (logits.logsumexp(dim=1) - logits.masked_fill(~own, 0.0).sum(dim=1)) * complete
        reach = max(32, len(pairs.queries))  # the most pairs that take no more memory than s
        distance = mean_distance_within_classes(pairs.references, column, counted.any(dim=0), reach)
        return terms.sum() / complete.sum().clamp(min=1) + self.tau / 2 * distance


def cross_entropy_of_positives(logits: Tensor, pairs: Pairs) -> Tensor:
    r"""Return the mean negative log of each query's summed positive probability.

    $\operatorname{mean}_q -\log \sum_{r \in P_q} p_{qr}$, with p the softmax over a query's pairs.

    The mean is over the queries that have a positive.

    Args:
        logits: (Q, R).
        pairs: Their kinds.
    """
    if logits.shape[1] == 0:
        return logits.sum()
    complete = pairs.positives.any(dim=1)
    # A query without a positive takes all references on both sides: zero, with a gradient of zero.
    own = pairs.positives | ~complete[:, None]
    either = pairs.positives | pairs.negatives | ~complete[:, None]
    total = logits.masked_fill(~either, -torch.inf).logsumexp(dim=1)
    terms = total - logits.masked_fill(~own, -torch.inf).logsumexp(dim=1)
    return terms.sum() / complete.sum().clamp(min=1)


_COINCIDE = 1e-14  # squared distance of unit vectors that differ by rounding alone; the root has no gradient at 0


def class_columns(reference_labels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Assign each class the column of its first reference, for labels of any value.

    Args:
        reference_labels: (R,) integer labels; at least one.
        labels: (Q,) integer labels of the queries.

    Returns:
        (R,) the column of each reference's class, and (Q, R) bool, true in the column of the query's class.
    """
    ordered, order = reference_labels.sort(stable=True)
    columns = order[torch.searchsorted(ordered, reference_labels)]
    found = torch.searchsorted(ordered, labels).clamp(max=len(ordered) - 1)
    own = order[found].masked_fill(ordered[found] != labels, -1)  # no column if the class has no reference
    return columns, own[:, None] == torch.arange(len(order), device=order.device)


def softmax_means(values: Tensor, logits: Tensor, counted: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    r"""Average values over the references of each class.

    Weights are the softmax of the logits within the class.

    Args:
        values: (Q, R).
        logits: (Q, R).
        counted: (Q, R) bool, the references to include.
        columns: (R,) the column of each reference's class, see `class_columns`.

    Returns:
        (Q, R) the averages in the columns of the classes, 0 elsewhere; and (Q, R) bool, true where one was included.
    """
    into = columns.expand_as(values)
    zeros = torch.zeros_like(values)
    largest = torch.full_like(values, -torch.inf)
    largest = largest.scatter_reduce(1, into, logits.detach().masked_fill(~counted, -torch.inf), "amax")
    weights = (logits - largest.gather(1, into)).masked_fill(~counted, -torch.inf).exp()
    present = largest > -torch.inf
    total = zeros.scatter_add(1, into, weights).masked_fill(~present, 1.0)
    return zeros.scatter_add(1, into, weights * values) / total, present


def mean_distance_within_classes(vectors: Tensor, classes: Tensor, counted: Tensor, reach: int) -> Tensor:
    r"""Return the mean distance of two vectors of one class.

    Vectors that coincide have a distance of 0 with a gradient of 0.

    Vectors are sorted by class, and each block of `reach` vectors is compared with itself and the next block. All pairs
    of a class of at most `reach` vectors are covered, in memory of at most 2 R reach distances.

    Args:
        vectors: (R, d).
        classes: (R,) integers, at least 0.
        counted: (R,) bool, the vectors to include.
        reach: Vectors in a block.
    """
    block = min(reach, len(vectors))
    group, order = classes.masked_fill(~counted, -1).sort(stable=True)
    rest = -len(vectors) % block + block  # to whole blocks, and one more as partner of the last
    x = pad(vectors.index_select(0, order).double(), (0, 0, 0, rest)).view(-1, block, vectors.shape[1])
    group = pad(group, (0, rest), value=-1).view(-1, block)
    y, partner = torch.cat([x[:-1], x[1:]], dim=1), torch.cat([group[:-1], group[1:]], dim=1)
    x, group = x[:-1], group[:-1]
    later = torch.ones(block, 2 * block, dtype=torch.bool, device=x.device).triu(1)
    pairs = (group[:, :, None] == partner[:, None, :]) & (group >= 0)[:, :, None] & later
    # In float64 the product form retains the full precision of distances of float32 vectors.
    squares = torch.baddbmm(x.square().sum(2)[:, :, None] + y.square().sum(2)[:, None, :], x, y.mT, alpha=-2)
    apart = pairs & (squares > _COINCIDE)
    total: Tensor = squares.masked_fill(~apart, 1.0).sqrt().masked_fill(~apart, 0.0).sum()
    return (total / pairs.sum().clamp(min=1)).to(vectors.dtype)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        known = ", ".join(repr(one) for one in choices)
        raise ValueError(f"{name}: expected one of {known}, got {value!r}. Choose one of them.")
