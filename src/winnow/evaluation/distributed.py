"""Retrieval evaluation over processes that each hold a shard of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from winnow.distributed import all_gather_rows
from winnow.errors import DataError
from winnow.evaluation.inputs import Array, as_count, as_embeddings, as_labels, check_dimensions, check_gallery
from winnow.evaluation.metrics import metric_names
from winnow.evaluation.results import RetrievalResult
from winnow.evaluation.retrieval import evaluate_retrieval, score_queries
from winnow.evaluation.search import CHUNK_BYTES


def evaluate_sharded(
    embeddings: Array,
    labels: Array,
    *,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    keep: int = 10,
    chunk_bytes: int = CHUNK_BYTES,
    group: dist.ProcessGroup | None = None,
) -> RetrievalResult:
    """Evaluate the concatenated shards of all processes.

    Each process scores its own queries.

    Every process of the group calls this function with its own shard. Shards are concatenated in the order of the
    ranks, and indices count through the concatenation. The result is the same on every process, bit for bit, as that
    of [`evaluate_retrieval`][winnow.evaluation.evaluate_retrieval] on the concatenation. Shards may have any size,
    also zero. Every process gathers all references and needs memory for them and a few blocks of distances.

    If `torch.distributed` is not initialized, this is `evaluate_retrieval`.

    Args:
        embeddings: Queries of this process, shape (Q_p, D), on the device of the process group.
        labels: Class of each query, shape (Q_p,).
        gallery: References of this process, shape (N_p, D). None on every process: the queries, each without itself.
        gallery_labels: Class of each reference, shape (N_p,).
        ks: Ranks of R@k.
        keep: Number of neighbors to keep per query, at most the number of references.
        chunk_bytes: Size limit of one block of distances. The result does not depend on it.
        group: Process group. None: all processes.

    Returns:
        The result of all shards, on the CPU, on every process.

    Raises:
        DataError: On every process, if the arrays of any process are unusable or do not match.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return evaluate_retrieval(
            embeddings,
            labels,
            gallery=gallery,
            gallery_labels=gallery_labels,
            ks=ks,
            keep=keep,
            chunk_bytes=chunk_bytes,
        )
    metric_names(ks)  # wrong settings raise on every process before the first exchange, so no process waits
    keep = as_count(keep, "keep", 0)
    own, shards = _exchange(embeddings, labels, gallery, gallery_labels, group)
    dtype = torch.float64 if any(shard.double for shard in shards) else torch.float32
    queries, query_labels = own[0].to(dtype), own[1]
    query_counts = [shard.queries for shard in shards]
    if len(own) == 2:
        references = all_gather_rows(queries, query_counts, group)
        reference_labels = all_gather_rows(query_labels, query_counts, group)
        first = sum(query_counts[: dist.get_rank(group)])
        self_index = torch.arange(first, first + len(queries), device=queries.device)
    else:
        counts = [shard.references for shard in shards]
        references, reference_labels = (
            all_gather_rows(own[2].to(dtype), counts, group),
            all_gather_rows(own[3], counts, group),
        )
        self_index = None
    scores = score_queries(
        queries,
        query_labels,
        references,
        reference_labels,
        self_index=self_index,
        ks=ks,
        keep=min(keep, len(references) - (self_index is not None)),
        chunk_bytes=chunk_bytes,
    )
    return scores.to_result(query_labels, reference_labels, lambda rows: all_gather_rows(rows, query_counts, group))


@dataclass(frozen=True)
class _Shard:
    """Description of the shard of one process, exchanged by all processes."""

    error: str | None
    queries: int = 0
    references: int = 0
    dimensions: int = 0
    double: bool = False
    has_gallery: bool = False


def _exchange(
    embeddings: Array,
    labels: Array,
    gallery: Array | None,
    gallery_labels: Array | None,
    group: dist.ProcessGroup | None,
) -> tuple[list[Tensor], list[_Shard]]:
    """Check this shard, and raise the error of any process on all processes."""
    own: list[Tensor] = []
    try:
        check_gallery(gallery, gallery_labels)
        own = _check_shard(embeddings, labels, "embeddings", "labels")
        if gallery is not None and gallery_labels is not None:
            own += _check_shard(gallery, gallery_labels, "gallery", "gallery_labels")
            check_dimensions(own[0], own[2])
        references = own[-2]
        mine = _Shard(
            error=None,
            queries=len(own[0]),
            references=len(references),
            dimensions=references.shape[1],
            double=torch.float64 in (own[0].dtype, references.dtype),
            has_gallery=len(own) == 4,
        )
    except DataError as error:
        mine = _Shard(error=str(error))
    shards: list[_Shard] = [mine] * dist.get_world_size(group)
    dist.all_gather_object(shards, mine, group=group)
    for rank, shard in enumerate(shards):
        if shard.error is not None:
            raise DataError(f"process {rank}: {shard.error}")
    if len({shard.dimensions for shard in shards}) > 1:
        dimensions = ", ".join(str(shard.dimensions) for shard in shards)
        raise DataError(f"embeddings: processes have {dimensions} dimensions. Embed all shards with the same model.")
    if len({shard.has_gallery for shard in shards}) > 1:
        raise DataError("gallery: missing on some processes. Pass one on all processes; it may be empty.")
    queries, references_total = sum(shard.queries for shard in shards), sum(shard.references for shard in shards)
    for name, total in (("embeddings", queries), ("gallery", references_total)):
        if total == 0:
            raise DataError(f"{name}: empty on all processes. Pass at least one row.")
    return own, shards


def _check_shard(rows: Array, labels: Array, name: str, labels_name: str) -> list[Tensor]:
    """Check the rows and labels of one process; zero rows are allowed."""
    checked = as_embeddings(rows, name, empty=True)
    return [checked, as_labels(labels, len(checked), checked.device, labels_name)]
