"""Models judged together: their embeddings side by side as one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnow.errors import DataError
from winnow.evaluation import retrieval_metrics
from winnow.files import write_text
from winnow.functional import NORMALIZERS, Normalizer
from winnow.protocols.statistics import Values, ensembles
from winnow.training import RunDir

CACHE = "ensembles.json"


def join(members: Sequence[Tensor], normalize: Normalizer) -> Tensor:
    r"""Return the joined embeddings of models: normalised, side by side, normalised.

    $$u = \nu\big([\nu(u_1), \dots, \nu(u_F)]\big)$$

    Args:
        members: Each (N, d_f), of the same images in the same order.
        normalize: The function nu: unit length in the documents.
    """
    return normalize(torch.cat([normalize(member) for member in members], dim=1))


def joined_metrics(
    folds: Sequence[Sequence[RunDir]],
    *,
    normalize: str,
    folder: Path,
    ks: Sequence[int] = (1, 2, 4, 8),
    queries: int | None = None,
) -> dict[str, Values]:
    """Judge every ensemble of one run of each fold.

    Args:
        folds: The finished runs of each fold, with their test embeddings.
        normalize: Name of what is done to embeddings.
        folder: Where the numbers are kept for the next time, for as long as the embeddings are the same.
        ks: Ranks of R@k.
        queries: How many of the embeddings are queries; the others are their gallery. None: each among all the others.

    Returns:
        Metric name to an array with an axis for each fold.

    Raises:
        DataError: for runs of other test images than the others', naming them.
        ModelError: for embeddings that cannot be read.
    """
    odd = other_images([run for fold in folds for run in fold])
    if odd:
        raise DataError(told_apart(odd))
    names = [[run.path.name for run in fold] for fold in folds]
    prints = {run.path.name: _fingerprint(run.embeddings_file) for fold in folds for run in fold}
    settings = {"normalise": normalize, "ks": list(ks), "queries": queries}
    others, known = _read(folder / CACHE, prints, settings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    read: dict[str, tuple[Tensor, Tensor]] = {}
    found: dict[tuple[int, ...], Mapping[str, float]] = {}
    for members in ensembles([len(fold) for fold in folds]):
        key = ",".join(names[f][r] for f, r in enumerate(members))
        if key not in known:
            runs = [folds[f][r] for f, r in enumerate(members)]
            for run in runs:
                if run.path.name not in read:
                    embeddings, labels = run.read_embeddings()
                    read[run.path.name] = embeddings.to(device), labels.to(device)
            together = join([read[run.path.name][0] for run in runs], NORMALIZERS[normalize])
            known[key] = judge_joined(together, read[runs[0].path.name][1], ks, queries)
        found[members] = known[key]
    content = {"members": others | prints, "settings": settings, "metrics": known}
    write_text(folder / CACHE, json.dumps(content, indent=1) + "\n")
    shape = [len(fold) for fold in folds]
    metrics = next(iter(found.values()))
    return {name: np.array([found[members][name] for members in ensembles(shape)]).reshape(shape) for name in metrics}


def judge_joined(embeddings: Tensor, labels: Tensor, ks: Sequence[int], queries: int | None) -> dict[str, float]:
    """Retrieve each among the others, or the first ones, which are queries, among the rest."""
    if queries is None:
        return retrieval_metrics(embeddings, labels, ks=ks)
    return retrieval_metrics(
        embeddings[:queries], labels[:queries], gallery=embeddings[queries:], gallery_labels=labels[queries:], ks=ks
    )


def other_images(runs: Sequence[RunDir]) -> list[RunDir]:
    """Return the runs whose kept embeddings are of other test images than most, or than the first where it is a draw.

    Raises:
        ModelError: for embeddings that cannot be read.
    """
    images = [run.read_images() for run in runs]
    most = max(images, key=lambda one: sum(one.matches(other) for other in images), default=None)
    return [run for run, one in zip(runs, images, strict=True) if most is not None and not most.matches(one)]


def told_apart(odd: Sequence[RunDir]) -> str:
    """Say that some runs are of other images, and what to do."""
    return (
        f"{', '.join(str(run.path) for run in odd)}: other test images, or in another order, than those of the other "
        "runs, so that the embeddings cannot be joined or compared: put the images back, remove these folders and "
        "train the runs anew"
    )


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def _read(
    path: Path, prints: Mapping[str, str], settings: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, dict[str, float]]]:
    """Return the members that were judged before, and the metrics of ensembles of those that are what they were."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["settings"] != settings:
            return {}, {}
        same = {name: mark for name, mark in content["members"].items() if prints.get(name, mark) == mark}
        return same, {key: value for key, value in content["metrics"].items() if set(key.split(",")) <= set(same)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, {}
