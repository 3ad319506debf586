"""`winnow evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from winnow.errors import ConfigError, DataError, ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from winnow.evaluation import RetrievalResult
    from winnow.models import BackboneConfig
    from winnow.training import Callback, RunDir


def evaluate(
    run: Path = typer.Argument(..., metavar="RUN", help="Run folder of `winnow train`, saved model, or index"),
    data: str | None = typer.Option(
        None, "--data", metavar="DATA", help="Other images: folder of class folders, CSV file, or dataset"
    ),
    rerank: list[str] = typer.Option(
        [], "--rerank", metavar="NAME", help="Also evaluate re-ranking: aqe or reciprocal; may be repeated"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON"),
) -> None:
    """Compute P@1, R@k, P@R, and MAP@R for a run or an index.

    A run is evaluated on its test classes, or on all images of --data. An index is evaluated on its labeled images.

    Examples:
        winnow evaluate runs/first
        winnow evaluate runs/first --data other-photos --rerank aqe
        winnow evaluate photos.index --json
    """
    from winnow.cli.console import echo_prose, metrics_table, out
    from winnow.evaluation import check_reranking

    for each in rerank:
        check_reranking(each)
    if (run / "index.json").is_file():
        if data is not None:
            raise ConfigError(f"--data: {run} is an index, which contains its images. Remove the option.")
        rows, queries = evaluate_index(run, rerank)
        record: dict[str, object] = {"metrics": rows, "queries": queries}
        note = ""
    else:
        rows, queries, record, note = evaluate_model(run, data, rerank)
    if as_json:
        print(json.dumps(record))
        return
    out.print(metrics_table(rows, f"{run} (%)"))
    echo_prose(f"{queries} queries{note}")


Rows = dict[str, dict[str, float]]
"""Metrics by name of the row."""


def evaluate_model(run: Path, data: str | None, rerank: list[str]) -> tuple[Rows, int, dict[str, object], str]:
    """Return table rows, number of queries, JSON record, and a note for a model."""
    from winnow.cli.progress import ConsoleCallback
    from winnow.training import RunDir, evaluate_run

    embeddings: list[Tensor] = []
    missing: dict[str, Mapping[str, Any]] = {}
    with ConsoleCallback() as callback:
        result = evaluate_run(RunDir(run), data, callback, embeddings.append, missing.update)
        baselines = evaluate_baselines(RunDir(run), data, callback)
    excluded = result.num_without_relevant
    queries = len(result.relevant) - excluded
    reranked = rerank_result(result, embeddings[0], rerank)
    record: dict[str, object] = {
        "metrics": result.metrics(), "queries": queries, "left_out": excluded, "missing": missing,
        "pretrained": baselines,
    }  # fmt: skip
    if rerank:
        record["reranked"] = reranked
    note = f"; {excluded} excluded, whose class has no other image" if excluded else ""
    if len(set(result.query_labels.tolist())) == 1:
        note += "; all images have one class, so every neighbor is relevant"
    if PRETRAINED in baselines and (notice := describe_drop(result.metrics(), baselines[PRETRAINED])):
        note += f"\n{notice}"
    return {**baselines, str(data or "test classes"): result.metrics(), **reranked}, queries, record, note


PRETRAINED, DEFAULT_MAP = "pretrained, no training", "pretrained, no training, default map"
"""Names of the rows of the baseline: with the map of the run, and with the network's last map."""


def evaluate_baselines(run_dir: RunDir, data: str | None, callback: Callback) -> Rows:
    """Return metrics of the pretrained backbone with average pooling.

    The table has no such row if the pretrained weights are missing, or random.
    """
    from winnow.training import evaluate_pretrained

    result = run_dir.read_result() if data is None else None
    if result is not None:
        rows = {PRETRAINED: result.untrained["test"]}
    elif _backbone(run_dir).weights == "random":
        rows = {}
    else:
        try:
            rows = {PRETRAINED: evaluate_pretrained(run_dir, data, callback)}
        except ModelError as error:
            callback.message(f"no row of the pretrained backbone: {error}")
            return {}
    return rows | default_map_row(run_dir, data, callback)


def default_map_row(run_dir: RunDir, data: str | None, callback: Callback) -> Rows:
    """Return the baseline on the network's default map if `backbone.stride` selects another map.

    A finer map often has a lower baseline, over which the same model seems to gain more.
    """
    from winnow.training import evaluate_pretrained

    backbone = _backbone(run_dir)
    is_emoji = data is None and run_dir.read_config().data.path == "emoji"  # has a finer map by default
    if backbone.stride is None or backbone.weights == "random" or is_emoji:
        return {}
    try:
        return {DEFAULT_MAP: evaluate_pretrained(run_dir, data, callback, default_map=True)}
    except ModelError as error:
        callback.message(f"no row of the default map: {error}")
        return {}


def _backbone(run_dir: RunDir) -> BackboneConfig:
    from winnow.models import Embedder

    is_run = run_dir.config_file.is_file()
    return (run_dir.read_config() if is_run else Embedder.read_config(run_dir.path)).backbone


def describe_drop(trained: Mapping[str, float], untrained: Mapping[str, float], run: str = "this table") -> str | None:
    """Return a notice if training raised MAP@R and lowered P@1."""
    rise, drop = (100 * (trained[name] - untrained[name]) for name in ("MAP@R", "P@1"))
    if rise < 0.05 or drop > -0.05:  # 0.0 as printed
        return None
    return (
        f"In {run} MAP@R rises by {rise:.1f} points and P@1 falls by {-drop:.1f}: more images of a class are near "
        "and fewer are nearest. If only the nearest image counts, select the checkpoint by train.monitor=P@1."
    )


def rerank_result(result: RetrievalResult, embeddings: Tensor, rerank: list[str]) -> Rows:
    """Return the metrics after each re-ranking, at the ranks of the plain ones."""
    from winnow.evaluation import reranked_metrics

    labels = result.query_labels
    if rerank and len(embeddings) != len(labels):
        raise ConfigError("--rerank: requires images without a separate gallery. Remove the option.")
    ks = [int(name.removeprefix("R@")) for name in result.metrics() if name.startswith("R@")]
    vectors = embeddings.cpu()
    return {each: reranked_metrics(vectors, labels, each, ks=ks) for each in rerank}


def evaluate_index(folder: Path, rerank: list[str]) -> tuple[Rows, int]:
    """Return metrics of the labeled images of an index, and the number of queries.

    Each image queries all other images.
    """
    import numpy as np

    from winnow.evaluation import reranked_metrics, retrieval_metrics
    from winnow.index import Index

    index = Index.open(folder)
    known = [(number, name) for number, name in zip(index.ids.tolist(), index.labels, strict=True) if name is not None]
    names = [name for _, name in known]
    classes = {name: number for number, name in enumerate(dict.fromkeys(names))}
    labels = np.array([classes[name] for name in names], dtype=np.int64)
    if not known or np.bincount(labels).max() < 2:
        raise DataError(f"{folder}: no class has 2 images, at least 2 required. Index labeled images.")
    vectors = index.vectors([number for number, _ in known])
    rows = {"plain": retrieval_metrics(vectors, labels)}
    rows |= {each: reranked_metrics(vectors, labels, each) for each in rerank}
    return rows, int((np.bincount(labels)[labels] > 1).sum())
