"""Exact retrieval evaluation: search, the result object, metrics."""

from winnow.evaluation.evaluate import evaluate_retrieval, retrieval_metrics
from winnow.evaluation.metrics import query_metrics
from winnow.evaluation.nearest import search
from winnow.evaluation.result import RetrievalResult

__all__ = ["RetrievalResult", "evaluate_retrieval", "query_metrics", "retrieval_metrics", "search"]
