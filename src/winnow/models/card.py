"""The model card written beside saved weights."""

from __future__ import annotations

import json
from collections.abc import Mapping

from winnow.models.config import ModelConfig

_TEMPLATE = """\
---
library_name: winnow
tags: [image-retrieval, metric-learning]
---
# Image embeddings: {backbone} with {pooling} pooling

Maps an image to a {dim}-dimensional vector; images of one kind lie near each other, also for kinds not seen in
training. Compare by {measure}.

```python
from winnow import Embedder

embedder = Embedder.from_pretrained("path/to/this/folder")
vectors = embedder.encode(["a.jpg", "b.jpg"])  # (2, {dim}), {length}
```

Input: short side {resize} px, centre crop {crop} px, RGB.
{notes}
## Measured

{measured}

## Configuration

```json
{config}
```
"""


def model_card(config: ModelConfig, metrics: Mapping[str, float] | None, ready: bool) -> str:
    """Write a card that says what the model is, how to use it and what was measured."""
    rows = [f"| {name} | {100 * value:.2f} |" for name, value in (metrics or {}).items()]
    measured = "\n".join(["| test metric | % |", "|---|---|", *rows]) if rows else "Nothing has been measured yet."
    notes = "" if ready else "\nThe prototypes were never set from data: this model pools by plain average.\n"
    on_sphere = config.normalise == "unit"
    return _TEMPLATE.format(
        measure="cosine similarity" if on_sphere else "Euclidean distance",
        length="unit length" if on_sphere else "at most unit length",
        backbone=config.backbone.name,
        pooling=config.pooling["name"].upper(),
        dim=config.dim,
        resize=config.image.resize,
        crop=config.image.crop,
        notes=notes,
        measured=measured,
        config=json.dumps(config.model_dump(), indent=2),
    )
