"""From what was seen to what is told."""

from __future__ import annotations

from pathlib import PurePath
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from winnow.index import Entry
from winnow.serve import answers
from winnow.serve.looking import Seen


class Named(TypedDict):
    """What is told of an image of the index."""

    id: int
    name: str
    label: str | None


def named(entry: Entry) -> Named:
    """Return what is told of an image: its file and folder, and not where on this machine they are."""
    parts = PurePath(entry.path.replace("\\", "/")).parts[-2:]
    return {"id": entry.id, "name": "/".join(parts).lstrip("/"), "label": entry.label}


def query(seen: Seen, *, key: str | None = None, entry: Entry | None = None) -> answers.Query:
    """Return what is told of a query: an upload by its key, or an image of the index."""
    shares = None if seen.attributes is None else np.round(seen.attributes.astype(np.float64), 5).tolist()
    image = None if entry is None else answers.Image(**named(entry))
    return answers.Query(key=key, image=image, heat_map=heat_map(seen, seen.weights), attributes=shares)


def heat_map(seen: Seen, weights: NDArray[np.float32] | None) -> answers.HeatMap | None:
    """Return weights (n,), which sum to one, in times the average."""
    if weights is None:
        return None
    rows, columns = seen.grid
    relative = np.round(weights.astype(np.float64) * len(weights), 3).tolist()
    return answers.HeatMap(rows=rows, columns=columns, box=answers.Box(**seen.box._asdict()), values=relative)
