"""Every registered pair loss against a loop over its equation, and the properties common to all."""

import copy
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from winnow.functional import NORMALIZERS
from winnow.functional.pairs import compare_within_batch
from winnow.losses import LOSSES
from winnow.losses.base import mean_nonzero


@dataclass
class Pairs:
    """A batch in plain Python: vectors, labels, and the positive and negative references of each query."""

    q: list[list[float]]
    r: list[list[float]]
    positives: list[list[int]]
    negatives: list[list[int]]
    labels: list[int]
    reference_labels: list[int]

    def similarity(self, q: int, r: int) -> float:
        return sum(a * b for a, b in zip(self.q[q], self.r[r], strict=True))

    def distance(self, q: int, r: int) -> float:
        return math.dist(self.q[q], self.r[r])


def pairs_of(queries, labels, references=None, reference_labels=None, exclude=None, *, ball=False) -> Pairs:
    def unit(row):
        length = max(1.0, math.hypot(*row)) if ball else math.hypot(*row)
        return [x / length for x in row]

    own = references is None
    references, reference_labels = (queries, labels) if own else (references, reference_labels)
    q, r = [[unit(row) for row in x.double().tolist()] for x in (queries, references)]
    positives: list[list[int]] = [[] for _ in q]
    negatives: list[list[int]] = [[] for _ in q]
    for i in range(len(q)):
        for j in range(len(r)):
            if (own and i == j) or (exclude is not None and bool(exclude[i, j])):
                continue
            side = positives if int(labels[i]) == int(reference_labels[j]) else negatives
            side[i].append(j)
    return Pairs(q, r, positives, negatives, labels.tolist(), reference_labels.tolist())


def mean_above_zero(terms: list[float]) -> float:
    above = [t for t in terms if t > 0]
    return sum(above) / len(above) if above else 0.0


def slow_c1(pairs: Pairs, neg_margin: float) -> float:
    total = 0.0
    for q in range(len(pairs.q)):
        total += sum(max(0.0, 1 - 1e-5 - pairs.similarity(q, r)) for r in pairs.positives[q])
        total += sum(max(0.0, pairs.similarity(q, r) - neg_margin) for r in pairs.negatives[q])
    return total / len(pairs.q) if pairs.q else 0.0


def slow_c2(pairs: Pairs, pos_margin: float, neg_margin: float) -> float:
    pull = [pairs.distance(q, r) - pos_margin for q, found in enumerate(pairs.positives) for r in found]
    push = [neg_margin - pairs.distance(q, r) for q, found in enumerate(pairs.negatives) for r in found]
    return mean_above_zero(pull) + mean_above_zero(push)


def slow_triplet(pairs: Pairs, margin: float) -> float:
    terms = []
    for q in range(len(pairs.q)):
        for p in pairs.positives[q]:
            terms += [pairs.distance(q, p) - pairs.distance(q, n) + margin for n in pairs.negatives[q]]
    return mean_above_zero(terms)


def slow_ms(pairs: Pairs, alpha: float, beta: float, base: float) -> float:
    total = 0.0
    for q in range(len(pairs.q)):
        pull = sum(math.exp(-alpha * (pairs.similarity(q, r) - base)) for r in pairs.positives[q])
        push = sum(math.exp(beta * (pairs.similarity(q, r) - base)) for r in pairs.negatives[q])
        total += math.log(1 + pull) / alpha + math.log(1 + push) / beta
    return total / len(pairs.q) if pairs.q else 0.0


def slow_margin(pairs: Pairs, margin: float, beta: float, nu: float, per_class: bool) -> float:
    betas = BETAS if per_class else [beta]
    pull, push = [], []
    for q, label in enumerate(pairs.labels):
        boundary = betas[label] if per_class else beta
        pull += [pairs.distance(q, r) - boundary + margin for r in pairs.positives[q]]
        push += [boundary + margin - pairs.distance(q, r) for r in pairs.negatives[q]]
    return mean_above_zero(pull + push) + nu * sum(betas) / len(betas)


def slow_npair(pairs: Pairs, scale: float) -> float:
    terms = []
    for q in range(len(pairs.q)):
        if pairs.negatives[q]:
            for p in pairs.positives[q]:
                gaps = [pairs.similarity(q, n) - pairs.similarity(q, p) for n in pairs.negatives[q]]
                terms.append(math.log(1 + sum(math.exp(scale * gap) for gap in gaps)))
    return sum(terms) / len(terms) if terms else 0.0


def slow_lifted(pairs: Pairs, neg_margin: float) -> float:
    terms = []
    for q in range(len(pairs.q)):
        if pairs.positives[q] and pairs.negatives[q]:
            pull = sum(math.exp(pairs.distance(q, p)) for p in pairs.positives[q])
            push = sum(math.exp(neg_margin - pairs.distance(q, n)) for n in pairs.negatives[q])
            terms.append(max(0.0, math.log(pull) + math.log(push)))
    return sum(terms) / len(terms) if terms else 0.0


def slow_proxy_anchor(pairs: Pairs, alpha: float, margin: float) -> float:
    pull, push = [], []
    for r in range(len(pairs.r)):
        own = [pairs.similarity(q, r) for q in range(len(pairs.q)) if r in pairs.positives[q]]
        other = [pairs.similarity(q, r) for q in range(len(pairs.q)) if r in pairs.negatives[q]]
        if own:
            pull.append(math.log(1 + sum(math.exp(-alpha * (s - margin)) for s in own)))
        if own and len(set(pairs.labels)) == 1 and not other:
            push.append(0.0)  # the paper counts the proxy of the only class too
        if other:
            push.append(math.log(1 + sum(math.exp(alpha * (s + margin)) for s in other)))
    return sum((sum(terms) / len(terms) for terms in (pull, push) if terms), 0.0)


def slow_proxy_nca(pairs: Pairs, temperature: float, similarity: str) -> float:
    def affinity(q: int, r: int) -> float:
        value = -(pairs.distance(q, r) ** 2) if similarity == "squared_distance" else pairs.similarity(q, r)
        return math.exp(value / temperature)

    terms = []
    for q in range(len(pairs.q)):
        own = sum(affinity(q, r) for r in pairs.positives[q])
        if pairs.positives[q]:
            terms.append(-math.log(own / (own + sum(affinity(q, r) for r in pairs.negatives[q]))))
    return sum(terms) / len(terms) if terms else 0.0


def slow_soft_triple(pairs: Pairs, scale: float, gamma: float, tau: float, margin: float, similarity: str) -> float:
    def class_similarity(q: int, members: list[int]) -> float:
        found = [pairs.similarity(q, r) if similarity == "cosine" else -pairs.distance(q, r) for r in members]
        weights = [math.exp(s / gamma) for s in found]
        return sum(w * s for w, s in zip(weights, found, strict=True)) / sum(weights)

    terms = []
    for q, label in enumerate(pairs.labels):
        classes: dict[int, list[int]] = {}
        for r in pairs.positives[q] + pairs.negatives[q]:
            classes.setdefault(pairs.reference_labels[r], []).append(r)
        if label in classes:
            logits = {
                c: scale * (class_similarity(q, members) - margin * (c == label)) for c, members in classes.items()
            }
            terms.append(math.log(sum(math.exp(logit) for logit in logits.values())) - logits[label])
    used = sorted({r for found in pairs.positives + pairs.negatives for r in found})
    within = [(i, j) for i in used for j in used if i != j and pairs.reference_labels[i] == pairs.reference_labels[j]]
    apart = sum(math.dist(pairs.r[i], pairs.r[j]) for i, j in within if i < j)
    return (sum(terms) / len(terms) if terms else 0.0) + (tau * apart / len(within) if within else 0.0)


def slow_cross_entropy(pairs: Pairs, logit: Callable[[int, int], float]) -> float:
    terms = []
    for q in range(len(pairs.q)):
        if pairs.positives[q]:
            own = sum(math.exp(logit(q, r)) for r in pairs.positives[q])
            terms.append(-math.log(own / sum(math.exp(logit(q, r)) for r in pairs.positives[q] + pairs.negatives[q])))
    return sum(terms) / len(terms) if terms else 0.0


def slow_norm_softmax(pairs: Pairs, temperature: float) -> float:
    return slow_cross_entropy(pairs, lambda q, r: pairs.similarity(q, r) / temperature)


def slow_arcface(pairs: Pairs, margin: float, scale: float) -> float:
    def logit(q: int, r: int) -> float:
        cosine = max(-1.0, min(1.0, pairs.similarity(q, r)))
        if r not in pairs.positives[q]:
            return scale * cosine
        angle = math.acos(cosine)
        beyond = angle > math.pi - margin
        return scale * (cosine - margin * math.sin(margin) if beyond else math.cos(angle + margin))

    return slow_cross_entropy(pairs, logit)


def slow_supcon(pairs: Pairs, temperature: float) -> float:
    terms = []
    for q in range(len(pairs.q)):
        if pairs.positives[q]:
            total = sum(math.exp(pairs.similarity(q, r) / temperature) for r in pairs.positives[q] + pairs.negatives[q])
            logs = [math.log(math.exp(pairs.similarity(q, p) / temperature) / total) for p in pairs.positives[q]]
            terms.append(-sum(logs) / len(logs))
    return sum(terms) / len(terms) if terms else 0.0


def slow_rank(pairs: Pairs, q: int, p: int, among: list[int], temperature: float) -> float:
    gaps = [(pairs.similarity(q, r) - pairs.similarity(q, p)) / temperature for r in among if r != p]
    return 1 + sum(1 / (1 + math.exp(-gap)) if gap > 0 else math.exp(gap) / (1 + math.exp(gap)) for gap in gaps)


def most_similar(pairs: Pairs, q: int, count: int) -> list[int]:
    return sorted(pairs.positives[q], key=lambda p: -pairs.similarity(q, p))[:count]


def slow_smooth_ap(pairs: Pairs, temperature: float, max_positives: int) -> float:
    terms = []
    for q in range(len(pairs.q)):
        if found := most_similar(pairs, q, max_positives):
            own, every = pairs.positives[q], pairs.positives[q] + pairs.negatives[q]
            ratios = [
                slow_rank(pairs, q, p, own, temperature) / slow_rank(pairs, q, p, every, temperature) for p in found
            ]
            terms.append(1 - sum(ratios) / len(ratios))
    return sum(terms) / len(terms) if terms else 0.0


def slow_recall_at_k(
    pairs: Pairs, ks: tuple[int, ...], temperature: float, rank_temperature: float, max_positives: int
) -> float:
    terms = []
    for q in range(len(pairs.q)):
        if found := most_similar(pairs, q, max_positives):
            ranks = [slow_rank(pairs, q, p, pairs.positives[q] + pairs.negatives[q], temperature) for p in found]
            for k in ks:
                within = sum(1 / (1 + math.exp((rank - k) / (k * rank_temperature))) for rank in ranks)
                terms.append(1 - min(k, within) / min(k, len(found)))
    return sum(terms) / len(terms) if terms else 0.0


def slow_pfml(pairs: Pairs, delta: float, alpha: float) -> float:
    def repulsion(d: float) -> float:
        nearest = 0.25 * delta
        if d >= nearest:
            return (delta / min(d, delta)) ** alpha - 1
        slope = -alpha / nearest * (delta / nearest) ** alpha
        return (delta / nearest) ** alpha - 1 + slope * (d - nearest)

    total = 0.0
    for q in range(len(pairs.q)):
        total += sum(1 - (delta / max(delta, pairs.distance(q, r))) ** alpha for r in pairs.positives[q])
        total += sum(repulsion(pairs.distance(q, r)) for r in pairs.negatives[q])
    return total / len(pairs.q) if pairs.q else 0.0


# For each loss: the loop, and settings to test in addition to the defaults.
SLOW: dict[str, tuple[Callable[..., float], list[dict[str, object]]]] = {
    "c1": (slow_c1, [{"neg_margin": -0.2}]),
    "c2": (slow_c2, [{"pos_margin": 0.4, "neg_margin": 1.3}]),
    "triplet": (slow_triplet, [{"margin": 0.7}]),
    "ms": (slow_ms, [{"alpha": 5.0, "beta": 3.0, "base": -0.1}]),
    "margin": (slow_margin, [{"margin": 1.1, "beta": 1.0}, {"margin": 0.7, "nu": 0.3, "per_class": True}]),
    "npair": (slow_npair, [{"scale": 3.0}]),
    "lifted": (slow_lifted, [{"neg_margin": 2.5}]),
    "proxy_anchor": (slow_proxy_anchor, [{"alpha": 3.0, "margin": 0.3}]),
    "proxy_nca": (slow_proxy_nca, [{"temperature": 0.7, "similarity": "dot"}]),
    "soft_triple": (
        slow_soft_triple,
        [{"scale": 3.0, "gamma": 0.6, "tau": 0.4, "margin": 0.2}, {"similarity": "distance", "scale": 5.0}],
    ),
    "supcon": (slow_supcon, [{"temperature": 0.7}]),
    "smooth_ap": (slow_smooth_ap, [{"temperature": 0.3}, {"temperature": 0.2, "max_positives": 2}]),
    "recall_at_k": (
        slow_recall_at_k,
        [
            {"ks": (1, 3), "temperature": 0.3, "rank_temperature": 0.5},
            {"temperature": 0.2, "max_positives": 2},
            {"ks": (1, 2), "temperature": 0.3, "rank_temperature": 6.0},  # several positives count within rank 1
        ],
    ),
    "norm_softmax": (slow_norm_softmax, [{"temperature": 0.7}]),
    "arcface": (slow_arcface, [{"margin": 1.2, "scale": 4.0}, {"margin": 0.0, "scale": 5.0}]),
    "pfml": (slow_pfml, [{"delta": 1.1, "alpha": 1.5}, {"delta": 3.0, "alpha": 3.0}]),
}

BETAS = [1.1, 0.4, 0.8, 1.5]  # boundaries of the margin loss, one for each class
CASES = [{"name": name, **chosen} for name in LOSSES for chosen in [{}, *SLOW.get(name, (None, []))[1]]]


def case_name(section: dict[str, object]) -> str:
    return "-".join(f"{key}={value}" if key != "name" else str(value) for key, value in section.items())


every_case = pytest.mark.parametrize("section", CASES, ids=case_name)
LABELS = torch.tensor([0, 1, 2, 0, 1, 1, 2, 0])


def build(section: dict[str, object] | str):
    """Build a loss for four classes, with different values for parameters of classes."""
    loss = LOSSES.build(section, num_classes=4, width=4)
    with torch.no_grad():
        for parameter in loss.parameters():
            if parameter.shape == (4,):
                parameter.copy_(torch.tensor(BETAS))
    return loss


def batch(count: int = 8, width: int = 4, seed: int = 0, dtype=torch.float64) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def expected(section: dict[str, object], *inputs) -> float:
    chosen = LOSSES.resolve(section)
    assert chosen.name in SLOW, f"{chosen.name}: no slow loop. Add its equation to SLOW in {Path(__file__).name}."
    return SLOW[chosen.name][0](pairs_of(*inputs), **chosen.arguments())


def call(loss, queries, labels, references=None, reference_labels=None, exclude=None) -> Tensor:
    """Return the loss against references, or of the batch within itself, also for a proxy loss without proxies."""
    if references is None and reference_labels is None:
        if type(loss).__module__.startswith("pytorch_metric_learning"):
            return loss(queries, labels)
        if exclude is None:
            return compare_within_batch(loss, queries, labels)
        references, reference_labels, exclude = queries, labels, exclude | torch.eye(len(queries), dtype=torch.bool)
    return loss(queries, labels, ref_emb=references, ref_labels=reference_labels, exclude=exclude)


def backward(loss, *inputs) -> tuple[Tensor, Tensor]:
    """Return the value and the gradient in the queries."""
    queries = inputs[0].detach().clone().requires_grad_()
    value = call(loss, queries, *inputs[1:])
    value.backward()
    return value.detach(), queries.grad


def test_every_loss_has_a_slow_reference():
    assert set(SLOW) == set(LOSSES)


@every_case
@settings(max_examples=15, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=7),
    reference_labels=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    width=st.integers(1, 4),
    seed=st.integers(0, 10**6),
)
def test_equals_the_loop_over_its_equation(section, labels, reference_labels, width, seed):
    loss = build(section)
    labels, reference_labels = torch.tensor(labels), torch.tensor(reference_labels)
    queries, references = batch(len(labels), width, seed), batch(len(reference_labels), width, seed + 1)
    exclude = batch(len(labels), len(reference_labels), seed + 2) > 0.5
    own_exclude = batch(len(labels), len(labels), seed + 3) > 0.5
    for inputs in (
        (queries, labels),
        (queries, labels, None, None, own_exclude),
        (queries, labels, references, reference_labels),
        (queries, labels, references, reference_labels, exclude),
    ):
        torch.testing.assert_close(
            float(call(loss, *inputs).detach()), expected(section, *inputs), rtol=1e-6, atol=1e-7
        )


@every_case
def test_ball_normalization_keeps_the_length_of_short_vectors(section):
    """Vectors shorter and longer than 1, so a formula that assumes unit vectors fails."""
    loss = build(section)
    loss.normalizer = NORMALIZERS["ball"]
    labels, reference_labels = torch.tensor([0, 1, 1, 2, 0]), torch.tensor([0, 0, 1, 2, 2, 1])
    queries = batch(5, 3, 1) * torch.tensor([0.1, 0.4, 1.0, 2.0, 0.2])[:, None]
    references = batch(6, 3, 2) * torch.tensor([0.1, 0.3, 3.0, 0.5, 1.0, 0.2])[:, None]
    chosen = LOSSES.resolve(section)
    slow = SLOW[chosen.name][0]
    for inputs in ((queries, labels), (queries, labels, references, reference_labels)):
        wanted = slow(pairs_of(*inputs, ball=True), **chosen.arguments())
        torch.testing.assert_close(float(call(loss, *inputs).detach()), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["c2", "triplet", "ms", "lifted", "npair", "supcon"])
def test_agrees_with_pytorch_metric_learning(name):
    from pytorch_metric_learning import losses, reducers

    theirs = {
        "c2": losses.ContrastiveLoss(pos_margin=0.3, neg_margin=1.2, reducer=reducers.AvgNonZeroReducer()),
        "triplet": losses.TripletMarginLoss(margin=0.2, reducer=reducers.AvgNonZeroReducer()),
        "ms": losses.MultiSimilarityLoss(alpha=3.0, beta=20.0, base=0.4),
        "lifted": losses.GeneralizedLiftedStructureLoss(neg_margin=0.7, pos_margin=0.0),
        "npair": losses.NTXentLoss(temperature=0.25),
        "supcon": losses.SupConLoss(temperature=0.25),
    }[name]
    ours = {
        "c2": {"pos_margin": 0.3, "neg_margin": 1.2},
        "triplet": {"margin": 0.2},
        "ms": {"alpha": 3.0, "beta": 20.0, "base": 0.4},
        "lifted": {"neg_margin": 0.7},
        "npair": {"scale": 4.0},
        "supcon": {"temperature": 0.25},
    }[name]
    queries = batch()
    value, grad = backward(LOSSES.build({"name": name, **ours}), queries, LABELS)
    their_value, their_grad = backward(theirs, queries, LABELS)
    torch.testing.assert_close(value, their_value)
    torch.testing.assert_close(grad, their_grad)


def test_margin_with_one_triplet_per_query_agrees_with_pytorch_metric_learning():
    """PML counts a pair once per triplet; with one negative per positive the counts are equal."""
    from pytorch_metric_learning import losses

    labels, queries = torch.tensor([0, 0, 1, 1]), batch(4)
    exclude = torch.zeros(4, 4, dtype=torch.bool)
    exclude[[0, 1, 2, 3], [2, 3, 0, 1]] = True
    triplets = (torch.arange(4), torch.tensor([1, 0, 3, 2]), torch.tensor([3, 2, 1, 0]))
    theirs = losses.MarginLoss(margin=0.6, beta=1.0, nu=0.1, learn_beta=True)
    ours = build({"name": "margin", "margin": 0.6, "beta": 1.0, "nu": 0.1})
    value, grad = backward(ours, queries, labels, None, None, exclude)
    their_queries = queries.detach().clone().requires_grad_()
    their_value = theirs(their_queries, labels, triplets)
    their_value.backward()
    their_grad = their_queries.grad
    torch.testing.assert_close(value, their_value, check_dtype=False)
    torch.testing.assert_close(grad, their_grad)


@pytest.mark.parametrize("name", ["proxy_anchor", "proxy_nca"])
def test_proxies_as_references_agree_with_pytorch_metric_learning(name):
    from pytorch_metric_learning import losses

    theirs = {
        "proxy_anchor": losses.ProxyAnchorLoss(3, 4, margin=0.2, alpha=10.0),
        "proxy_nca": losses.ProxyNCALoss(3, 4, softmax_scale=4.0),
    }[name].double()
    ours = {
        "proxy_anchor": {"margin": 0.2, "alpha": 10.0},
        "proxy_nca": {"temperature": 0.25, "similarity": "squared_distance"},
    }[name]
    loss = LOSSES.build({"name": name, **ours})
    value, grad = backward(loss, batch(), LABELS, theirs.proxies.detach(), torch.arange(3))
    their_value, their_grad = backward(theirs, batch(), LABELS)
    torch.testing.assert_close(value, their_value)
    torch.testing.assert_close(grad, their_grad)


def test_soft_triple_merges_all_centers_of_a_class():
    """Fourteen centers in any order: all pairs of a class count, not only neighbors in a block."""
    section = {"name": "soft_triple", "tau": 0.8}
    order = torch.randperm(28, generator=torch.Generator().manual_seed(0))
    centers, classes = batch(28, seed=1), (torch.arange(28) % 2)[order]
    inputs = batch(4), LABELS[:4], centers, classes
    torch.testing.assert_close(float(call(build(section), *inputs)), expected(section, *inputs), rtol=1e-6, atol=1e-7)


def test_soft_triple_agrees_with_pytorch_metric_learning():
    from pytorch_metric_learning import losses

    theirs = losses.SoftTripleLoss(3, 4, centers_per_class=5, la=7.0, gamma=0.3, margin=0.2).double()
    loss = build({"name": "soft_triple", "scale": 7.0, "gamma": 0.3, "margin": 0.2, "tau": 0.0})
    centers = theirs.fc.detach().double().T
    value, grad = backward(loss, batch(), LABELS, centers, torch.arange(3).repeat_interleave(5))
    their_value, their_grad = backward(theirs, batch(), LABELS)
    torch.testing.assert_close(value, their_value)
    torch.testing.assert_close(grad, their_grad)


@every_case
def test_gradient_equals_finite_differences(section):
    loss = build(section).double()
    if not loss.has_exact_gradient:
        return
    queries, references = batch(6, 3).requires_grad_(), batch(5, 3, seed=1).requires_grad_()
    learned = tuple(loss.parameters())
    assert torch.autograd.gradcheck(lambda q, *_: call(loss, q, LABELS[:6]), (queries, *learned))
    against = (queries, references, *learned)
    assert torch.autograd.gradcheck(lambda q, r, *_: call(loss, q, LABELS[:6], r, LABELS[:5]), against)


DEGENERATE = {
    "no positives": (batch(4), torch.arange(4)),
    "no negatives": (batch(4), torch.zeros(4, dtype=torch.int64)),
    "a single sample": (batch(1), torch.zeros(1, dtype=torch.int64)),
    "an empty batch": (batch(0), torch.zeros(0, dtype=torch.int64)),
    "no references": (batch(3), torch.arange(3), batch(0), torch.zeros(0, dtype=torch.int64)),
    "all excluded": (batch(3), LABELS[:3], batch(4), LABELS[:4], torch.ones(3, 4, dtype=torch.bool)),
    "no queries": (batch(0), torch.zeros(0, dtype=torch.int64), batch(3), LABELS[:3]),
}


@every_case
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_batches_have_finite_gradients(section, case):
    value, grad = backward(build(section), *DEGENERATE[case])
    assert float(value) == pytest.approx(expected(section, *DEGENERATE[case]), rel=1e-6, abs=1e-9)
    assert grad.isfinite().all()
    if case not in ("no positives", "no negatives"):
        assert not grad.any()
        if "nu" not in section:  # nu weights boundaries, not pairs
            assert float(value) == 0.0


@every_case
@pytest.mark.parametrize("scale", [0.0, 1.0], ids=["zero vectors", "one vector"])
def test_identical_embeddings_give_finite_gradients(section, scale):
    queries = scale * batch(1).float().expand(8, 4)
    value, grad = backward(build(section), queries, LABELS)
    assert value.isfinite()
    assert grad.isfinite().all()


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_input_is_computed_in_float32(section, dtype):
    loss = build(section)
    queries = batch().to(dtype)
    value, grad = backward(loss, queries, LABELS)
    assert value.dtype is torch.float32
    torch.testing.assert_close(value, call(loss, queries.float(), LABELS), rtol=0, atol=0)
    assert grad.dtype is dtype
    assert grad.isfinite().all()


@every_case
def test_float32_is_near_float64(section):
    loss = build(section)
    value = call(loss, batch().float(), LABELS)
    assert value.dtype is torch.float32
    torch.testing.assert_close(value, call(loss, batch(), LABELS).float(), rtol=1e-4, atol=1e-6)


@every_case
def test_autocast_changes_nothing(section):
    loss, queries = build(section), batch().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        value = call(loss, queries, LABELS)
    value.backward()
    torch.testing.assert_close((value.detach(), queries.grad), backward(loss, queries, LABELS), rtol=0, atol=0)
    assert all(parameter.dtype is torch.float32 for parameter in loss.parameters())


@pytest.mark.slow
@every_case
def test_compiles_to_one_graph_that_equals_eager(section):
    torch._dynamo.reset()
    loss, queries = build(section), batch(6, 3)
    value, grad = backward(loss, queries, LABELS[:6])
    compiled = torch.compile(copy.deepcopy(loss), fullgraph=True, backend="aot_eager")
    compiled_value, compiled_grad = backward(compiled, queries, LABELS[:6])
    torch.testing.assert_close(compiled_value, value)
    torch.testing.assert_close(compiled_grad, grad)


@every_case
@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(8)))
def test_order_of_the_batch_does_not_matter(section, order):
    loss = build(section)
    torch.testing.assert_close(call(loss, batch()[order], LABELS[order]), call(loss, batch(), LABELS))
    references, exclude = batch(seed=1), batch(width=8, seed=2) > 0.5
    shuffled = call(loss, batch(), LABELS, references[order], LABELS[order], exclude[:, order])
    torch.testing.assert_close(shuffled, call(loss, batch(), LABELS, references, LABELS, exclude))


@every_case
def test_length_of_the_embeddings_does_not_matter(section):
    loss, lengths = build(section), torch.linspace(0.1, 30, 8)[:, None]
    torch.testing.assert_close(call(loss, batch() * lengths, LABELS), call(loss, batch(), LABELS))


# A loss with parameters per class requires the labels of the training classes.
@pytest.mark.parametrize("section", [case for case in CASES if not case.get("per_class")], ids=case_name)
@settings(max_examples=10, deadline=None)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3, unique=True))
def test_any_integers_serve_as_labels(section, values):
    loss = build(section)
    torch.testing.assert_close(
        call(loss, batch(), torch.tensor(values)[LABELS]), call(loss, batch(), LABELS), rtol=0, atol=0
    )


@every_case
def test_excluded_pairs_receive_no_gradient(section):
    exclude = torch.zeros(8, 5, dtype=torch.bool)
    exclude[:, 2] = True
    references = batch(5, seed=1).requires_grad_()
    call(build(section), batch(), LABELS, references, LABELS[:5], exclude).backward()
    assert not references.grad[2].any()
    assert references.grad[[0, 1, 3, 4]].any(dim=1).all()


@every_case
@pytest.mark.parametrize("given_ones", [(batch(2), None), (None, LABELS[:2])], ids=["no labels", "no references"])
def test_references_and_their_labels_go_together(section, given_ones):
    with pytest.raises(ValueError, match="ref_emb, ref_labels"):
        call(build(section), batch(), LABELS, *given_ones)


@every_case
def test_state_survives_saving_and_loading(section):
    loss = build(section)
    for parameter in loss.parameters():
        torch.nn.init.uniform_(parameter)
    saved = io.BytesIO()
    torch.save(loss.state_dict(), saved)
    saved.seek(0)
    fresh = build(section)
    fresh.load_state_dict(torch.load(saved, weights_only=True))
    torch.testing.assert_close(call(fresh, batch(), LABELS), call(loss, batch(), LABELS), rtol=0, atol=0)


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that is created."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(one.numel() for one in tree_leaves(made) if isinstance(one, Tensor))])
        return made


@every_case
def test_memory_with_many_proxies_is_that_of_a_few_similarity_matrices(section):
    """Four proxies of each of 2,000 classes: (R, R) would be 250 times as large as (Q, R)."""
    queries, references = batch(32, 4, dtype=torch.float32), batch(4 * 2000, 4, seed=1, dtype=torch.float32)
    labels, reference_labels = torch.arange(32) % 4, torch.arange(2000).repeat(4)
    with Largest() as largest:
        backward(build(section), queries, labels, references.requires_grad_(), reference_labels)
    assert largest.elements <= 2.1 * len(queries) * len(references)
    assert references.grad.isfinite().all()


def test_terms_above_1e_5_are_averaged():
    """C2 excludes rounding in float32, not pairs that are nearly satisfied."""
    terms = torch.tensor([2e-5, 8e-6, 0.0, 4e-5, 0.0], dtype=torch.float64)
    assert float(mean_nonzero(terms)) == pytest.approx(3e-5)
    assert float(mean_nonzero(terms[1:3])) == 0


def test_rounding_has_no_effect_if_a_query_equals_its_reference():
    """CCP proxies start as embeddings, which differ from those of the same images in a batch by rounding at most."""
    torch.manual_seed(0)
    loss = LOSSES.build({"name": "c2"})
    queries, labels = torch.randn(6, 8, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2, 2])
    queries = queries / queries.norm(dim=1, keepdim=True)
    found = []
    for noise in (0.0, 1e-15, 1e-8):
        q = (queries + noise * torch.randn_like(queries)).requires_grad_()
        value = call(loss, q, labels, queries, labels)
        (gradient,) = torch.autograd.grad(value, q)
        found.append((value.detach(), gradient))
    for value, gradient in found[1:]:
        assert torch.allclose(value, found[0][0], rtol=1e-6)
        assert torch.allclose(gradient, found[0][1], atol=1e-6)
    distances = torch.cdist(queries, queries)
    positive = (labels[:, None] == labels) & ~torch.eye(6, dtype=torch.bool)
    negative = labels[:, None] != labels
    push = (0.5 - distances[negative]).relu()
    expected = distances[positive].mean() + push.sum() / (push > 0).sum().clamp(min=1)
    assert torch.allclose(found[0][0], expected)


def test_the_default_margin_of_c2_covers_the_distances_of_a_pretrained_network():
    """At 0.9, a typical distance of classes before training; a margin of 0.5 has no loss there."""
    angle = torch.tensor(2 * math.asin(0.45))
    embeddings = torch.stack([torch.tensor([1.0, 0.0]), torch.stack([angle.cos(), angle.sin()])])
    labels = torch.tensor([0, 1])
    assert float(LOSSES.build({"name": "c2"})(embeddings, labels)) == pytest.approx(0.1, abs=1e-5)
    assert float(LOSSES.build({"name": "c2", "neg_margin": 0.5})(embeddings, labels)) == 0
