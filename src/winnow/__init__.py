"""Deep metric learning in PyTorch: image embeddings for unseen classes.

`import winnow` loads nothing heavy. Subpackages and the main names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnow import (
        data,
        evaluation,
        functional,
        losses,
        miners,
        models,
        pooling,
        protocols,
        references,
        regularizers,
        studies,
        training,
    )
    from winnow.evaluation import retrieval_metrics
    from winnow.export import export_model
    from winnow.index import Index
    from winnow.models import Embedder
    from winnow.training import load_config, train

try:
    __version__ = version("winnow-dml")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

_NAMES = {
    "Embedder": "winnow.models",
    "Index": "winnow.index",
    "export_model": "winnow.export",
    "load_config": "winnow.training",
    "retrieval_metrics": "winnow.evaluation",
    "train": "winnow.training",
}

__all__ = [
    "Embedder",
    "Index",
    "__version__",
    "data",
    "evaluation",
    "export_model",
    "functional",
    "load_config",
    "losses",
    "miners",
    "models",
    "pooling",
    "protocols",
    "references",
    "regularizers",
    "retrieval_metrics",
    "studies",
    "train",
    "training",
]


def __getattr__(name: str) -> object:
    """Load a subpackage or a main name on first use."""
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    if name in __all__:
        return import_module(f"winnow.{name}")
    raise AttributeError(f"module 'winnow' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
