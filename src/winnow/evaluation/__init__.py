"""Exact retrieval evaluation: search, the result object, metrics."""

from winnow.evaluation.evaluate import evaluate_retrieval, retrieval_metrics
from winnow.evaluation.metrics import query_metrics
from winnow.evaluation.nearest import search
from winnow.evaluation.result import RetrievalResult
from winnow.evaluation.sharded import evaluate_sharded

__all__ = ["RetrievalResult", "evaluate_retrieval", "evaluate_sharded", "query_metrics", "retrieval_metrics", "search"]
