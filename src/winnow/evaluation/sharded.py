"""Evaluation over several processes, each of which holds a share of the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from winnow.distributed import all_gather_rows
from winnow.errors import DataError
from winnow.evaluation.blocks import CHUNK_BYTES
from winnow.evaluation.evaluate import evaluate_retrieval
from winnow.evaluation.inputs import Array, as_count, as_embeddings, as_labels, check_together, check_width
from winnow.evaluation.judge import judge
from winnow.evaluation.metrics import metric_names
from winnow.evaluation.result import RetrievalResult


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
    """Evaluate what several processes hold together, as if one held it all; each judges its own queries.

    Every process of the group calls this with its own share. The whole is the shares one after another in the order
    of the ranks, and the result, the same on every process down to the last bit, is that of
    [`evaluate_retrieval`][winnow.evaluation.evaluate_retrieval] on that whole; indices count through it. Shares may
    be of any size, also empty. Every process gathers all references, so each needs room for these, and for a few
    blocks of distances.

    Without `torch.distributed` initialised there is one share, the whole.

    Args:
        embeddings: This process's queries, shape (Q_p, D); on the device the group communicates from.
        labels: Their classes, shape (Q_p,).
        gallery: This process's references, shape (N_p, D); none on every process: the queries themselves, each
            without itself.
        gallery_labels: Their classes, shape (N_p,).
        ks: The ranks of R@k.
        keep: Number of neighbours to keep of every query, cut to the number there are.
        chunk_bytes: The most that one block of distances may take; the result does not depend on it.
        group: The processes; None: all of them.

    Returns:
        The result of the whole, on the CPU, on every process.

    Raises:
        DataError: on every process, if the arrays of any one cannot be used or do not fit together.
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
    metric_names(ks)  # whoever gives a wrong setting gives it to all: nobody is left waiting
    keep = as_count(keep, "keep", 0)
    own, facts = _agree(embeddings, labels, gallery, gallery_labels, group)
    dtype = torch.float64 if any(one.double for one in facts) else torch.float32
    queries, query_labels = own[0].to(dtype), own[1]
    query_counts = [one.queries for one in facts]
    if len(own) == 2:
        references = all_gather_rows(queries, query_counts, group)
        reference_labels = all_gather_rows(query_labels, query_counts, group)
        first = sum(query_counts[: dist.get_rank(group)])
        selves = torch.arange(first, first + len(queries), device=queries.device)
    else:
        counts = [one.references for one in facts]
        references, reference_labels = (
            all_gather_rows(own[2].to(dtype), counts, group),
            all_gather_rows(own[3], counts, group),
        )
        selves = None
    judged = judge(
        queries,
        query_labels,
        references,
        reference_labels,
        own=selves,
        ks=ks,
        keep=min(keep, len(references) - (selves is not None)),
        chunk_bytes=chunk_bytes,
    )
    return judged.result(query_labels, reference_labels, lambda rows: all_gather_rows(rows, query_counts, group))


@dataclass(frozen=True)
class _Facts:
    """What the processes tell each other of their shares."""

    error: str | None
    queries: int = 0
    references: int = 0
    width: int = 0
    double: bool = False
    has_gallery: bool = False


def _agree(
    embeddings: Array,
    labels: Array,
    gallery: Array | None,
    gallery_labels: Array | None,
    group: dist.ProcessGroup | None,
) -> tuple[list[Tensor], list[_Facts]]:
    """Check this share, tell the others, and raise on all processes what is wrong on any."""
    own: list[Tensor] = []
    try:
        check_together(gallery, gallery_labels)
        own = _share(embeddings, labels, "embeddings", "labels")
        if gallery is not None and gallery_labels is not None:
            own += _share(gallery, gallery_labels, "gallery", "gallery_labels")
            check_width(own[0], own[2])
        references = own[-2]
        mine = _Facts(
            error=None,
            queries=len(own[0]),
            references=len(references),
            width=references.shape[1],
            double=torch.float64 in (own[0].dtype, references.dtype),
            has_gallery=len(own) == 4,
        )
    except DataError as error:
        mine = _Facts(error=str(error))
    facts: list[_Facts] = [mine] * dist.get_world_size(group)
    dist.all_gather_object(facts, mine, group=group)
    for rank, one in enumerate(facts):
        if one.error is not None:
            raise DataError(f"the share of process {rank} cannot be used: {one.error}")
    if len({one.width for one in facts}) > 1:
        widths = ", ".join(str(one.width) for one in facts)
        raise DataError(f"the processes hold embeddings of {widths} dimensions; embed all with the same model")
    if len({one.has_gallery for one in facts}) > 1:
        raise DataError("some processes give a gallery and some do not; give one on all (an empty share will do)")
    for what, total in (("queries", sum(f.queries for f in facts)), ("references", sum(f.references for f in facts))):
        if total == 0:
            raise DataError(f"no process holds any {what}; give at least one row")
    return own, facts


def _share(rows: Array, labels: Array, name: str, labels_name: str) -> list[Tensor]:
    """Check one process's rows and labels; no rows at all are allowed."""
    checked = as_embeddings(rows, name, empty=True)
    return [checked, as_labels(labels, len(checked), checked.device, labels_name)]
