"""Numbers of a method's finished runs: of every ensemble, or of every run where a protocol has one fold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnow.errors import DataError, ModelError
from winnow.evaluation import retrieval_metrics
from winnow.files import parse_json
from winnow.functional import NORMALIZERS, Normalizer
from winnow.integrity import check_listed, write_checked_text
from winnow.protocols.curves import HEADLINE, is_late, late_metrics
from winnow.protocols.plan import ProtocolRequest, ProtocolRun
from winnow.protocols.statistics import Scores, Values, list_ensembles
from winnow.training import RunDir, RunResult
from winnow.training.config import read_recorded

CACHE = "ensembles.json"
"""File with the metrics of concatenated embeddings."""
Results = Mapping[tuple[str, int, int], RunResult]
"""Results of finished runs by method, fold, and run."""

Numbers = dict[tuple[int, str], Scores]
"""Values of all ensembles (or runs) in percent, by embedding size and metric."""


def method_values(
    request: ProtocolRequest, method: str, runs: Sequence[ProtocolRun], results: Results
) -> Numbers:  # fmt: skip
    """Return the numbers of a method; empty if a fold has no finished run.

    The smaller size has the mean of an ensemble's members, the larger one their concatenated embeddings.

    Raises:
        DataError: If runs have different test images.
        ModelError: If embeddings cannot be read.
    """
    folds = _finished_folds(request, method, runs, results)
    if not all(folds):
        return {}
    metrics = [[_run_metrics(request, run, results[run.key]) for run in fold] for fold in folds]
    names = _common_metrics([one for fold in metrics for one in fold])
    first = results[folds[0][0].key]
    dim = first.config["dim"]
    found: Numbers = {
        (dim, name): Scores.of_members([[100 * one[name] for one in fold] for fold in metrics]) for name in names
    }
    if request.protocol.report == "ensembles":
        run_dirs = [[run.planned.run_dir for run in fold] for fold in folds]
        concatenated = ensemble_metrics(
            run_dirs, normalize=read_recorded(first.config).normalize, folder=run_dirs[0][0].path.parent,
            ks=request.dataset.ks, queries=first.data.queries,
        )  # fmt: skip
        found |= {(dim * len(folds), name): Scores(100 * concatenated[name]) for name in names if name in concatenated}
    return found


def all_values(
    request: ProtocolRequest, runs: Sequence[ProtocolRun], results: Results
) -> tuple[dict[str, Numbers], dict[str, str]]:
    """Return the numbers of every method, and the reasons of methods whose finished runs have none."""
    methods = [str(spec) for spec in request.specs]
    values: dict[str, Numbers] = {}
    reasons: dict[str, str] = {}
    for method in methods:
        try:
            values[method] = method_values(request, method, runs, results)
        except (DataError, ModelError) as error:
            values[method], reasons[method] = {}, str(error)
    if request.protocol.report == "ensembles":
        methods_of = {run.planned.run_dir: run.method for run in runs if values[run.method] and run.key in results}
        mismatched = mismatched_runs(list(methods_of))
        for method in {methods_of[run_dir]: None for run_dir in mismatched}:
            values[method] = {}
            reasons[method] = describe_mismatch([one for one in mismatched if methods_of[one] == method])
    return values, reasons


def concatenate(members: Sequence[Tensor], normalize: Normalizer) -> Tensor:
    r"""Return the concatenated embeddings of models: each normalized, then all of it.

    $$u = \nu\big([\nu(u_1), \dots, \nu(u_F)]\big)$$

    Args:
        members: Embeddings (N, d_f) of each model, of the same images in the same order.
        normalize: The function nu; unit length in the published tables.
    """
    return normalize(torch.cat([normalize(member) for member in members], dim=1))


def ensemble_metrics(
    folds: Sequence[Sequence[RunDir]],
    *,
    normalize: str,
    folder: Path,
    ks: Sequence[int] = (1, 2, 4, 8),
    queries: int | None = None,
) -> dict[str, Values]:
    """Evaluate the concatenated embeddings of every ensemble of one run of each fold.

    Args:
        folds: Finished runs of each fold, with their test embeddings.
        normalize: Name of the normalization.
        folder: Folder of the cached metrics, which are used again while the embeddings are the same.
        ks: Ranks of R@k.
        queries: Number of embeddings that are queries, which precede their gallery; by default each embedding queries
            all others.

    Returns:
        Metric name to an array with an axis for each fold.

    Raises:
        DataError: If runs have different test images; the message names them.
        ModelError: If embeddings cannot be read.
    """
    mismatched = mismatched_runs([run for fold in folds for run in fold])
    if mismatched:
        raise DataError(describe_mismatch(mismatched))
    names = [[run.path.name for run in fold] for fold in folds]
    hashes = {run.path.name: _file_hash(run.embeddings_file) for fold in folds for run in fold}
    settings = {"normalise": normalize, "ks": list(ks), "queries": queries}  # keys of the caches of version 0.1.0
    other_members, known = _read_cache(folder / CACHE, hashes, settings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    read: dict[str, tuple[Tensor, Tensor]] = {}
    found: dict[tuple[int, ...], Mapping[str, float]] = {}
    for members in list_ensembles([len(fold) for fold in folds]):
        key = ",".join(names[f][r] for f, r in enumerate(members))
        if key not in known:
            runs = [folds[f][r] for f, r in enumerate(members)]
            for run in runs:
                if run.path.name not in read:
                    embeddings, labels = run.read_embeddings()
                    read[run.path.name] = embeddings.to(device), labels.to(device)
            together = concatenate([read[run.path.name][0] for run in runs], NORMALIZERS[normalize])
            known[key] = _evaluate(together, read[runs[0].path.name][1], ks, queries)
        found[members] = known[key]
    content = {"members": other_members | hashes, "settings": settings, "metrics": known}
    write_checked_text(folder / CACHE, json.dumps(content, indent=1) + "\n")
    shape = [len(fold) for fold in folds]
    metrics = next(iter(found.values()))
    return {
        name: np.array([found[members][name] for members in list_ensembles(shape)]).reshape(shape) for name in metrics
    }


def mismatched_runs(runs: Sequence[RunDir]) -> list[RunDir]:
    """Return the runs whose saved embeddings are of other test images than most, or than the first in a tie.

    Raises:
        ModelError: If embeddings cannot be read.
    """
    images = [run.read_images() for run in runs]
    most = max(images, key=lambda one: sum(one.matches(other) for other in images), default=None)
    return [run for run, one in zip(runs, images, strict=True) if most is not None and not most.matches(one)]


def describe_mismatch(runs: Sequence[RunDir]) -> str:
    """Return the error message about runs of other test images."""
    return (
        f"{', '.join(str(run.path) for run in runs)}: expected the test images of the other runs, got other images or "
        "another order. Restore the images, remove these folders, and train the runs again."
    )


def _evaluate(embeddings: Tensor, labels: Tensor, ks: Sequence[int], queries: int | None) -> dict[str, float]:
    if queries is None:
        return retrieval_metrics(embeddings, labels, ks=ks)
    return retrieval_metrics(
        embeddings[:queries], labels[:queries], gallery=embeddings[queries:], gallery_labels=labels[queries:], ks=ks
    )


def _finished_folds(
    request: ProtocolRequest, method: str, runs: Sequence[ProtocolRun], results: Results
) -> list[list[ProtocolRun]]:
    """Return the finished runs of each fold by number, so runs of two methods are paired by position."""
    finished = sorted((run for run in runs if run.method == method and run.key in results), key=lambda run: run.run)
    return [[run for run in finished if run.fold == fold] for fold in range(1, request.protocol.folds + 1)]


def _run_metrics(request: ProtocolRequest, run: ProtocolRun, result: RunResult) -> Mapping[str, float]:
    """Return the metrics of the selected weights, and the means over the last third of training."""
    late = late_metrics(request.protocol, run.planned.run_dir, result)
    return {**result.metrics[request.protocol.split], **late}


def _common_metrics(found: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the metrics of all runs: the headline first, then P@R, R@k by rank, and means over the last third."""
    common = set.intersection(*(set(metrics) for metrics in found))
    ranks = sorted((name for name in common if name.startswith("R@")), key=lambda name: int(name[2:]))
    late = [name for name in found[0] if name in common and is_late(name)]
    return [*(name for name in (*HEADLINE, "P@R") if name in common), *ranks, *late]


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def _read_cache(
    path: Path, hashes: Mapping[str, str], settings: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """Return the cached members, and the metrics of ensembles whose members did not change."""
    try:
        check_listed(path)
        content: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        if content["settings"] != settings:
            return {}, {}
        same = {name: mark for name, mark in content["members"].items() if hashes.get(name, mark) == mark}
        return same, {key: value for key, value in content["metrics"].items() if set(key.split(",")) <= set(same)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ModelError):  # computed again
        return {}, {}
