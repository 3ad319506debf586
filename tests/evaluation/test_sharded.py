"""Several processes with a share each give the result of one process with everything, bit for bit."""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

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
    rows[40:46] = rows[3]  # ties across the shares
    return rows, labels


def pieces(result):
    return [result.neighbours, result.distances, result.query_labels, result.reference_labels, result.relevant] + [
        values.nan_to_num(-1) for values in result.per_query.values()
    ]


def shares(counts, *tensors):
    return [tensor.split(counts) for tensor in tensors]


def self_retrieval(rank, counts):
    rows, labels = (share[rank] for share in shares(counts, *data()))
    return evaluate_sharded(rows, labels, ks=(1, 4, 60), keep=5)


def against_a_gallery(rank, counts):
    rows, labels = data()
    gallery = [part[rank] for part in shares(counts[::-1], rows[30:].double(), labels[30:])]
    halved = [count // 3 for count in counts]
    halved[0] += 30 - sum(halved)
    mine = [part[rank] for part in shares(halved, rows[:30], labels[:30])]
    return evaluate_sharded(*mine, gallery=gallery[0], gallery_labels=gallery[1], keep=200)


def a_share_of_strangers(rank, counts):
    rows, labels = data()
    labels[: counts[0]] = torch.arange(1000, 1000 + counts[0])
    mine = (share[rank] for share in shares(counts, rows, labels))
    return evaluate_sharded(*mine, keep=5)


def one_bad_share(rank, counts):
    rows, labels = (share[rank] for share in shares(counts, *data()))
    if rank == 1:
        rows = torch.full_like(rows, torch.nan)
    with pytest.raises(DataError, match=r"process 1 cannot be used: .* NaN"):
        evaluate_sharded(rows, labels)


def other_width(rank, counts):
    rows, labels = (share[rank] for share in shares(counts, *data()))
    with pytest.raises(DataError, match="6, 5 dimensions"):
        evaluate_sharded(rows[:, : 6 - rank], labels)


def nobody_has_any(rank, counts):
    with pytest.raises(DataError, match="no process holds any queries"):
        evaluate_sharded(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))


def gallery_on_one_only(rank, counts):
    rows, labels = (share[rank] for share in shares(counts, *data()))
    more = {"gallery": rows, "gallery_labels": labels} if rank else {}
    with pytest.raises(DataError, match="give one on all"):
        evaluate_sharded(rows, labels, **more)


def all_that_is_wrong(rank, counts):
    for job in (one_bad_share, other_width, nobody_has_any, gallery_on_one_only):
        job(rank, counts)


def process(rank, job, counts, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=len(counts), timeout=timedelta(seconds=60))
    try:
        found = job(rank, counts)
        if isinstance(found, RetrievalResult):
            torch.save(pieces(found), os.path.join(folder, f"{rank}.pt"))
    finally:
        dist.destroy_process_group()


def run(job, counts):
    """Let one process for each share do the job; return what each of them found."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, args=(job, counts, folder), nprocs=len(counts))
        return [torch.load(file) for file in sorted(Path(folder).glob("*.pt"))]


def same(left, right):
    return all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(left, right, strict=True))


def test_every_process_has_the_result_of_one():
    counts = (20, 0, 70)
    rows, labels = data()
    wanted = pieces(evaluate_retrieval(rows, labels, ks=(1, 4, 60), keep=5))
    found = run(self_retrieval, counts)
    assert len(found) == len(counts)
    assert all(same(one, wanted) for one in found)


def test_queries_and_gallery_are_shared_out_each_in_its_own_way():
    rows, labels = data()
    wanted = evaluate_retrieval(
        rows[:30], labels[:30], gallery=rows[30:].double(), gallery_labels=labels[30:], keep=200
    )
    found = run(against_a_gallery, (10, 50, 0))
    assert len(found) == 3
    assert all(same(one, pieces(wanted)) for one in found)


def test_queries_without_relevant_references_keep_their_neighbours():
    rows, labels = data()
    labels[:20] = torch.arange(1000, 1020)
    wanted = pieces(evaluate_retrieval(rows, labels, keep=5))
    assert all(same(one, wanted) for one in run(a_share_of_strangers, (20, 70)))


def test_what_is_wrong_with_one_share_is_told_by_all_and_nobody_waits():
    run(all_that_is_wrong, (45, 45))


def test_without_processes_it_is_plain_evaluation():
    rows, labels = data()
    assert same(pieces(evaluate_sharded(rows, labels)), pieces(evaluate_retrieval(rows, labels)))
