"""Every miner against a loop over its definition, and the properties common to all."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from winnow.errors import ConfigError
from winnow.losses import LOSSES, MarginLoss, Pairs, TripletMarginLoss
from winnow.miners import MINERS, DistanceWeightedMiner, HardPairMiner, SemiHardMiner, log_density
from winnow.references import REFERENCES

LABELS = torch.tensor([0, 1, 2, 0, 1, 1, 2, 0])
every_miner = pytest.mark.parametrize("name", list(MINERS))


def vectors(count: int, width: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairs_of(queries: Tensor, labels: Tensor, references: Tensor, reference_labels: Tensor, allowed: Tensor) -> Pairs:
    same = labels[:, None] == reference_labels
    q, r = normalize(queries, dim=1), normalize(references, dim=1)
    return Pairs(q, r, same & allowed, ~same & allowed, labels, reference_labels)


def within(queries: Tensor, labels: Tensor) -> Pairs:
    return pairs_of(queries, labels, queries, labels, ~torch.eye(len(labels), dtype=torch.bool))


def columns_of(mask: Tensor) -> list[list[int]]:
    return [row.nonzero()[:, 0].tolist() for row in mask]


def distance(pairs: Pairs, q: int, r: int) -> float:
    return math.dist(pairs.queries[q].tolist(), pairs.references[r].tolist())


def check_all(pairs: Pairs, kept: Pairs, q: int, own: list[int], other: list[int]) -> None:
    assert columns_of(kept.positives)[q] == own
    assert columns_of(kept.negatives)[q] == other


def check_hard(pairs: Pairs, kept: Pairs, q: int, own: list[int], other: list[int], positives: str) -> None:
    if positives == "hardest" and own:
        own = [max(own, key=lambda r: distance(pairs, q, r))]
    nearest = sorted(other, key=lambda r: distance(pairs, q, r))[: len(own)]
    check_all(pairs, kept, q, own, sorted(nearest))


def check_semi_hard(pairs: Pairs, kept: Pairs, q: int, own: list[int], other: list[int], margin: float) -> None:
    gaps = {n: [distance(pairs, q, n) - distance(pairs, q, p) for p in own] for n in other}
    check_all(pairs, kept, q, own, [n for n in other if any(0 < gap < margin for gap in gaps[n])])


def check_distance_weighted(
    pairs: Pairs, kept: Pairs, q: int, own: list[int], other: list[int], cutoff: float, nonzero_loss_cutoff: float
) -> None:
    near = [n for n in other if distance(pairs, q, n) < nonzero_loss_cutoff]
    chosen = columns_of(kept.negatives)[q]
    assert set(chosen) <= set(near)
    assert len(chosen) == min(len(own), len(near))
    assert columns_of(kept.positives)[q] == own


# For each miner: the check of a query, and settings to test in addition to the defaults.
SLOW = {
    "all": (check_all, {}),
    "hard": (check_hard, {"positives": "hardest"}),
    "semi_hard": (check_semi_hard, {"margin": 0.7}),
    "distance_weighted": (check_distance_weighted, {"cutoff": 0.1, "nonzero_loss_cutoff": 1.1}),
}


def test_every_miner_has_a_slow_reference() -> None:
    assert set(SLOW) == set(MINERS)


@every_miner
@pytest.mark.parametrize("tuned", [False, True], ids=["defaults", "tuned"])
@settings(max_examples=15, deadline=None)
@given(
    labels=st.lists(st.integers(-1, 2), max_size=7),
    reference_labels=st.lists(st.integers(-1, 2), max_size=9),
    seed=st.integers(0, 10**6),
)
def test_selected_pairs_follow_the_definition(
    name: str, tuned: bool, labels: list[int], reference_labels: list[int], seed: int
) -> None:
    check, other = SLOW[name]
    section = {"name": name, **(other if tuned else {})}
    chosen = MINERS.resolve(section).arguments()
    count, reference_count = len(labels), len(reference_labels)
    allowed = vectors(count, reference_count, seed) < 0.5
    given_ones = torch.tensor(labels, dtype=torch.int64), torch.tensor(reference_labels, dtype=torch.int64)
    pairs = pairs_of(
        vectors(count, 4, seed + 1), given_ones[0], vectors(reference_count, 4, seed + 2), given_ones[1], allowed
    )
    kept = MINERS.build(section)(pairs)
    assert kept.queries is pairs.queries
    assert kept.references is pairs.references
    for q, (own, others) in enumerate(zip(columns_of(pairs.positives), columns_of(pairs.negatives), strict=True)):
        check(pairs, kept, q, own, others, **chosen)


def test_equal_distances_do_not_select_more_pairs() -> None:
    pairs = within(torch.ones(6, 3, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2, 2]))
    assert HardPairMiner()(pairs).negatives.sum(dim=1).tolist() == [1] * 6
    assert DistanceWeightedMiner()(pairs).negatives.sum(dim=1).tolist() == [1] * 6
    assert not SemiHardMiner()(pairs).negatives.any()


def successive(weights: list[float], count: int) -> list[float]:
    """Return the probability of each item among `count` draws without replacement, over all orders."""
    chances = [0.0] * len(weights)
    for drawn in itertools.permutations(range(len(weights)), count):
        chance, left = 1.0, sum(weights)
        for place in drawn:
            chance *= weights[place] / left
            left -= weights[place]
        for place in drawn:
            chances[place] += chance
    return chances


@pytest.mark.parametrize("width", [3, 6, 10])
@pytest.mark.parametrize("count", [1, 3])
def test_draws_follow_the_inverse_density(width: int, count: int) -> None:
    """One query with six negatives at known distances, against the probabilities of the definition."""
    distances = [0.2, 0.5, 0.8, 1.1, 1.3, 1.45]
    angles = [2 * math.asin(d / 2) for d in distances]
    negatives = torch.zeros(6, width, dtype=torch.float64)
    negatives[:, 0], negatives[:, 1] = torch.tensor(angles).cos(), torch.tensor(angles).sin()
    query = torch.eye(width, dtype=torch.float64)[:1]
    repeats = 20_000
    labels = torch.zeros(repeats, dtype=torch.int64)
    references = torch.cat([query.expand(count, -1), negatives])
    reference_labels = torch.tensor([0] * count + [1, 2, 3, 4, 5, 6])
    pairs = pairs_of(
        query.expand(repeats, -1), labels, references, reference_labels, torch.ones(repeats, count + 6) > 0
    )
    torch.manual_seed(0)
    found = DistanceWeightedMiner()(pairs).negatives[:, count:].double().mean(dim=0)

    def weight(d: float) -> float:
        return 0.0 if d >= 1.4 else 1 / (max(d, 0.5) ** (width - 2) * (1 - max(d, 0.5) ** 2 / 4) ** ((width - 3) / 2))

    wanted = torch.tensor([*successive([weight(d) for d in distances[:5]], count), 0.0], dtype=torch.float64).clamp(
        max=1
    )
    # Five standard deviations of a fraction, and a few draws of nearly impossible items.
    assert ((found - wanted).abs() <= 5 * (wanted * (1 - wanted) / repeats).sqrt() + 3 / repeats).all(), (found, wanted)


def test_the_density_is_that_of_random_unit_vectors() -> None:
    torch.manual_seed(0)
    x, y = normalize(torch.randn(2, 400_000, 6, dtype=torch.float64), dim=2)
    edges = torch.linspace(0.3, 1.9, 9, dtype=torch.float64)
    seen = torch.histogram((x - y).norm(dim=1), edges).hist
    fine = torch.linspace(0.3, 1.9, 8 * 200 + 1, dtype=torch.float64)
    middles = (fine[1:] + fine[:-1]) / 2
    mass = log_density(middles, 6).exp().reshape(8, 200).sum(dim=1)
    torch.testing.assert_close(seen / seen.sum(), mass / mass.sum(), rtol=0.02, atol=0)


def test_semi_hard_negatives_agree_with_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.miners import TripletMarginMiner

    anchors, _, negatives = TripletMarginMiner(margin=0.3, type_of_triplets="semihard")(vectors(8), LABELS)
    kept = SemiHardMiner(margin=0.3)(within(vectors(8), LABELS)).negatives
    theirs = sorted(set(zip(anchors.tolist(), negatives.tolist(), strict=True)))
    assert theirs
    assert kept.nonzero().tolist() == [list(pair) for pair in theirs]


def test_hardest_pairs_agree_with_pytorch_metric_learning() -> None:
    from pytorch_metric_learning.miners import BatchHardMiner

    anchors, positives, negatives = BatchHardMiner()(vectors(8), LABELS)
    kept = HardPairMiner(positives="hardest")(within(vectors(8), LABELS))
    assert kept.positives.nonzero().tolist() == torch.stack([anchors, positives], dim=1).tolist()
    assert kept.negatives.nonzero().tolist() == torch.stack([anchors, negatives], dim=1).tolist()


def test_a_loss_compares_the_selected_pairs() -> None:
    loss, queries = TripletMarginLoss(margin=0.5), vectors(8).requires_grad_()
    loss.miner = HardPairMiner(positives="hardest")
    kept = loss.miner(within(vectors(8), LABELS))
    value = loss(queries, LABELS)
    dropped = ~(kept.positives | kept.negatives)
    plain = TripletMarginLoss(margin=0.5)(queries, LABELS, ref_emb=queries, ref_labels=LABELS, exclude=dropped)
    torch.testing.assert_close(value, plain)
    value.backward()
    assert queries.grad is not None
    assert queries.grad.any()


@every_miner
@pytest.mark.parametrize("source", list(REFERENCES))
def test_every_miner_works_with_every_loss_and_source(name: str, source: str) -> None:
    section = {"batches": 2, "start": 0} if source == "memory" else {}
    references = REFERENCES.build({"name": source, **section}, num_classes=3, embedding_size=4, batch_size=8)
    for kind in LOSSES:
        loss = LOSSES.build({"name": kind}, num_classes=3)
        loss.miner = MINERS.build(name)
        for step in range(3):
            queries = vectors(8, seed=step).float().requires_grad_()
            references(loss, queries, LABELS).backward()
            assert queries.grad is not None
            assert queries.grad.isfinite().all()


@pytest.mark.slow
@every_miner
def test_compiles_to_one_graph_that_equals_eager(name: str) -> None:
    torch._dynamo.reset()
    loss = MarginLoss()
    loss.miner = MINERS.build(name)
    compiled = torch.compile(copy.deepcopy(loss), fullgraph=True, backend="aot_eager")
    values = []
    for one in (loss, compiled):
        torch.manual_seed(0)
        values.append(one(vectors(8), LABELS).detach())
    torch.testing.assert_close(*values)


@every_miner
def test_draws_depend_on_the_random_numbers_of_torch_alone(name: str) -> None:
    pairs = within(vectors(40, 16), torch.arange(40) // 4)
    chosen = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        chosen.append(MINERS.build(name)(pairs).negatives)
    assert torch.equal(chosen[0], chosen[1])
    assert torch.equal(chosen[0], chosen[2]) == (name != "distance_weighted")


def test_invalid_settings_raise() -> None:
    with pytest.raises(ConfigError, match=r"miner.*semi_hard.*margin"):
        MINERS.build({"name": "semi_hard", "margin": 0})
    with pytest.raises(ConfigError, match="nonzero_loss_cutoff"):
        MINERS.build({"name": "distance_weighted", "cutoff": 1.5})


def test_both_ends_of_the_semi_hard_band_are_excluded() -> None:
    references = torch.tensor([[1.0], [1.0], [1.125], [1.25], [2.0]], dtype=torch.float64)
    positives = torch.tensor([[True, False, False, False, False]])
    pairs = Pairs(torch.zeros(1, 1).double(), references, positives, ~positives, LABELS[:1], torch.arange(5))
    assert columns_of(SemiHardMiner(margin=0.25)(pairs).negatives) == [[2]]
