"""Exact retrieval evaluation: search, the result object, metrics."""

from winnow.evaluation.evaluate import evaluate_retrieval, retrieval_metrics
from winnow.evaluation.metrics import query_metrics
from winnow.evaluation.nearest import search
from winnow.evaluation.rerank import (
    RERANKINGS,
    KReciprocal,
    check_reranking,
    expand_queries,
    k_reciprocal_distances,
    reranked_metrics,
)
from winnow.evaluation.result import RetrievalResult
from winnow.evaluation.sharded import evaluate_sharded

__all__ = [
    "RERANKINGS",
    "KReciprocal",
    "RetrievalResult",
    "check_reranking",
    "evaluate_retrieval",
    "evaluate_sharded",
    "expand_queries",
    "k_reciprocal_distances",
    "query_metrics",
    "reranked_metrics",
    "retrieval_metrics",
    "search",
]
