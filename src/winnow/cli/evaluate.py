"""`winnow evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from winnow.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from winnow.evaluation import RetrievalResult


def evaluate(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder of `winnow train`, or an index."),
    data: str = typer.Option(
        None, "--data", help="Other images: a folder of class folders or a CSV; all are searched."
    ),
    rerank: list[str] = typer.Option(
        [], "--rerank", help="Also with a second look: aqe or reciprocal; may be given twice."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
) -> None:
    """Measure a trained run on its test classes, or on other data; or the labelled images of an index."""
    from winnow.cli.console import echo, metrics_table, out
    from winnow.cli.progress import ConsoleCallback
    from winnow.evaluation import check_reranking
    from winnow.training import RunDir
    from winnow.training.run import evaluate_run

    for each in rerank:
        check_reranking(each)
    if (run / "index.json").is_file():
        if data is not None:
            raise ConfigError(f"{run} is an index, which has its images: leave --data out")
        rows, queries = evaluate_index(run, rerank)
        if as_json:
            print(json.dumps({"metrics": rows, "queries": queries}))
        else:
            out.print(metrics_table(rows, f"{run} (%)"))
            echo(f"{queries} queries")
        return
    embeddings: list[Tensor] = []
    missing: dict[str, Mapping[str, Any]] = {}
    with ConsoleCallback() as monitor:
        result = evaluate_run(RunDir(run), data, monitor, embeddings.append, missing.update)
    queries = len(result.relevant) - result.num_without_relevant
    again = rerank_run(result, embeddings[0], rerank)
    if as_json:
        told: dict[str, object] = {
            "metrics": result.metrics(), "queries": queries, "left_out": result.num_without_relevant,
            "missing": missing,
        }  # fmt: skip
        print(json.dumps({**told, "reranked": again} if rerank else told))
        return
    out.print(metrics_table({str(data or "test classes"): result.metrics(), **again}, f"{run} (%)"))
    note = (
        f"; {result.num_without_relevant} left out, whose class has no other image"
        if result.num_without_relevant
        else ""
    )
    if len(set(result.query_labels.tolist())) == 1:
        note += "; all are of one class, so that no neighbour can be wrong"
    echo(f"{queries} queries{note}")


def rerank_run(result: RetrievalResult, embeddings: Tensor, rerank: list[str]) -> dict[str, dict[str, float]]:
    """Return the metrics of a run's images with each second look, at the ranks of the first."""
    from winnow.evaluation import reranked_metrics

    labels = result.query_labels
    if rerank and len(embeddings) != len(labels):
        raise ConfigError("--rerank is for images that are searched in themselves; this set has a gallery of its own")
    ks = [int(name.removeprefix("R@")) for name in result.metrics() if name.startswith("R@")]
    vectors = embeddings.cpu()
    return {each: reranked_metrics(vectors, labels, each, ks=ks) for each in rerank}


def evaluate_index(folder: Path, rerank: list[str]) -> tuple[dict[str, dict[str, float]], int]:
    """Return the metrics of the labelled images of an index searched in themselves, and the number of queries."""
    import numpy as np

    from winnow.evaluation import reranked_metrics, retrieval_metrics
    from winnow.index import Index

    index = Index.open(folder)
    known = [(number, name) for number, name in zip(index.ids.tolist(), index.labels, strict=True) if name is not None]
    names = [name for _, name in known]
    classes = {name: place for place, name in enumerate(dict.fromkeys(names))}
    labels = np.array([classes[name] for name in names], dtype=np.int64)
    if not known or np.bincount(labels).max() < 2:
        raise DataError(f"{folder} has no two images of one class, so that nothing can be retrieved")
    vectors = index.vectors([number for number, _ in known])
    rows = {"plain": retrieval_metrics(vectors, labels)}
    rows |= {each: reranked_metrics(vectors, labels, each) for each in rerank}
    return rows, int((np.bincount(labels)[labels] > 1).sum())
