"""Exact nearest-neighbor retrieval and its metrics: P@1, R@k, P@R, and MAP@R; localization by weights."""

from winnow.evaluation.distributed import evaluate_sharded
from winnow.evaluation.localization import box_coverage, pointing_game, weight_in_box
from winnow.evaluation.metrics import query_metrics
from winnow.evaluation.reranking import (
    RERANKINGS,
    KReciprocal,
    check_reranking,
    expand_queries,
    k_reciprocal_distances,
    reranked_metrics,
)
from winnow.evaluation.results import RetrievalResult
from winnow.evaluation.retrieval import evaluate_retrieval, retrieval_metrics
from winnow.evaluation.search import nearest_neighbors

__all__ = [
    "RERANKINGS",
    "KReciprocal",
    "RetrievalResult",
    "box_coverage",
    "check_reranking",
    "evaluate_retrieval",
    "evaluate_sharded",
    "expand_queries",
    "k_reciprocal_distances",
    "nearest_neighbors",
    "pointing_game",
    "query_metrics",
    "reranked_metrics",
    "retrieval_metrics",
    "weight_in_box",
]
