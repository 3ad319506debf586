"""Studies of the documents, each a function that makes a table, a figure and a paragraph.

Each study is one file and one line in `STUDIES`; `winnow study NAME` runs it and writes what it found.
"""

from collections.abc import Mapping

from winnow.studies import (
    average_pooling,
    ccp_alternate,
    ccp_batch,
    ccp_cost,
    ccp_geometry,
    ccp_mnist,
    ccp_pool,
    ccp_samples,
    ccp_search,
    centres,
    collage,
    components,
    copies,
    cub_losses,
    cub_poolings,
    delta_cover,
    iterations,
    learned,
    losses,
    m_eps,
    mu,
    poolings,
    prototypes,
    reranking,
    screening,
    summary,
    tokens,
    tokens_vit,
    toy_map,
    zero_shot,
)
from winnow.studies.base import Findings, Study, Task, write_findings

STUDIES: Mapping[str, Study] = {
    "summary": summary.study,
    "toy-map": toy_map.study,
    "tokens": tokens.study,
    "tokens-vit": tokens_vit.study,
    "zero-shot": zero_shot.study,
    "iterations": iterations.study,
    "average-pooling": average_pooling.study,
    "mu": mu.study,
    "m-eps": m_eps.study,
    "components": components.study,
    "screening": screening.study,
    "prototypes": prototypes.study,
    "learned": learned.study,
    "delta-cover": delta_cover.study,
    "copies": copies.study,
    "reranking": reranking.study,
    "losses": losses.study,
    "poolings": poolings.study,
    "centres": centres.study,
    "collage": collage.study,
    "ccp-mnist": ccp_mnist.study,
    "ccp-geometry": ccp_geometry.study,
    "ccp-alternate": ccp_alternate.study,
    "ccp-pool": ccp_pool.study,
    "ccp-batch": ccp_batch.study,
    "ccp-cost": ccp_cost.study,
    "ccp-samples": ccp_samples.study,
    "ccp-search": ccp_search.study,
    "cub-losses": cub_losses.study,
    "cub-poolings": cub_poolings.study,
}

__all__ = ["STUDIES", "Findings", "Study", "Task", "write_findings"]
