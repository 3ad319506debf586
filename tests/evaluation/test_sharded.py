"""Evaluation of shards in several processes equals evaluation in one process, bit for bit."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from winnow.errors import DataError
from winnow.evaluation import RetrievalResult, evaluate_retrieval, evaluate_sharded


def data():
    rng = torch.Generator().manual_seed(0)
    labels = torch.randint(12, (90,), generator=rng)
    labels[5] = 99
    rows = torch.randn(12, 6, generator=rng)[labels % 12] + torch.randn(90, 6, generator=rng)
    rows[40:46] = rows[3]  # ties across shards
    return rows, labels


def fields(result):
    return [result.neighbors, result.distances, result.query_labels, result.reference_labels, result.relevant] + [
        values.nan_to_num(-1) for values in result.per_query.values()
    ]


def shards(counts, *tensors):
    return [tensor.split(counts) for tensor in tensors]


def self_retrieval(rank, counts):
    rows, labels = (shard[rank] for shard in shards(counts, *data()))
    return evaluate_sharded(rows, labels, ks=(1, 4, 60), keep=5)


def against_a_gallery(rank, counts):
    rows, labels = data()
    gallery = [part[rank] for part in shards(counts[::-1], rows[30:].double(), labels[30:])]
    halved = [count // 3 for count in counts]
    halved[0] += 30 - sum(halved)
    mine = [part[rank] for part in shards(halved, rows[:30], labels[:30])]
    return evaluate_sharded(*mine, gallery=gallery[0], gallery_labels=gallery[1], keep=200)


def shard_without_relevant_references(rank, counts):
    rows, labels = data()
    labels[: counts[0]] = torch.arange(1000, 1000 + counts[0])
    mine = (shard[rank] for shard in shards(counts, rows, labels))
    return evaluate_sharded(*mine, keep=5)


def one_bad_shard(rank, counts):
    rows, labels = (shard[rank] for shard in shards(counts, *data()))
    if rank == 1:
        rows = torch.full_like(rows, torch.nan)
    with pytest.raises(DataError, match=r"^process 1: .* NaN"):
        evaluate_sharded(rows, labels)


def other_dimensions(rank, counts):
    rows, labels = (shard[rank] for shard in shards(counts, *data()))
    with pytest.raises(DataError, match="6, 5, 4 dimensions"):
        evaluate_sharded(rows[:, : 6 - rank], labels)


def empty_everywhere(rank, counts):
    with pytest.raises(DataError, match=r"^embeddings: empty on all processes"):
        evaluate_sharded(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))


def gallery_on_one_process(rank, counts):
    rows, labels = (shard[rank] for shard in shards(counts, *data()))
    more = {"gallery": rows, "gallery_labels": labels} if rank else {}
    with pytest.raises(DataError, match=r"^gallery: missing on some processes"):
        evaluate_sharded(rows, labels, **more)


def all_errors(rank, counts):
    for job in (one_bad_shard, other_dimensions, empty_everywhere, gallery_on_one_process):
        job(rank, counts)


JOBS = {
    self_retrieval: (20, 0, 70),
    against_a_gallery: (10, 50, 0),
    shard_without_relevant_references: (20, 70, 0),
    all_errors: (45, 45, 0),
}
"""Rows of each of three processes."""


def process(rank, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=3, timeout=timedelta(seconds=60))
    try:
        for job, counts in JOBS.items():
            found = job(rank, counts)
            if isinstance(found, RetrievalResult):
                torch.save(fields(found), folder / f"{job.__name__}-{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run all jobs, including `all_errors`, in three processes; return the fields of a job's result on each process."""
    folder = tmp_path_factory.mktemp("shards")
    mp.spawn(process, args=(folder,), nprocs=3)
    return lambda job: [torch.load(folder / f"{job.__name__}-{rank}.pt") for rank in range(3)]


def same(left, right):
    return all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(left, right, strict=True))


@pytest.mark.slow
def test_every_process_has_the_result_of_a_single_process(run):
    rows, labels = data()
    wanted = fields(evaluate_retrieval(rows, labels, ks=(1, 4, 60), keep=5))
    assert all(same(one, wanted) for one in run(self_retrieval))


@pytest.mark.slow
def test_queries_and_gallery_may_be_sharded_differently(run):
    rows, labels = data()
    wanted = evaluate_retrieval(
        rows[:30], labels[:30], gallery=rows[30:].double(), gallery_labels=labels[30:], keep=200
    )
    assert all(same(one, fields(wanted)) for one in run(against_a_gallery))


@pytest.mark.slow
def test_queries_without_relevant_references_keep_their_neighbors(run):
    rows, labels = data()
    labels[:20] = torch.arange(1000, 1020)
    wanted = fields(evaluate_retrieval(rows, labels, keep=5))
    assert all(same(one, wanted) for one in run(shard_without_relevant_references))


def test_without_process_group_it_is_plain_evaluation():
    rows, labels = data()
    assert same(fields(evaluate_sharded(rows, labels)), fields(evaluate_retrieval(rows, labels)))
