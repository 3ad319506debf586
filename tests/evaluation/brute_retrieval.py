"""Retrieval metrics as a plain loop over the definitions, sharing nothing with the library."""

import math

import numpy as np


def ranking(query, references, own=None):
    """Reference indices by (squared distance, index), in exact sums of float64 squares."""
    found = []
    for index, reference in enumerate(references):
        if index != own:
            found.append((math.fsum((float(a) - float(b)) ** 2 for a, b in zip(query, reference, strict=True)), index))
    return [index for _, index in sorted(found)]


def metrics(embeddings, labels, gallery=None, gallery_labels=None, ks=(1, 2, 4, 8)):
    own = gallery is None
    references, reference_labels = (embeddings, labels) if own else (gallery, gallery_labels)
    rows = []
    for q in range(len(embeddings)):
        order = ranking(embeddings[q], references, q if own else None)
        hits = [int(reference_labels[i]) == int(labels[q]) for i in order]
        total = sum(hits)
        if total == 0:
            continue
        row = {"P@1": float(hits[0])}
        row |= {f"R@{k}": float(any(hits[:k])) for k in ks}
        row["P@R"] = sum(hits[:total]) / total
        row["MAP@R"] = sum(sum(hits[: i + 1]) / (i + 1) for i in range(total) if hits[i]) / total
        rows.append(row)
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}, len(embeddings) - len(rows)
