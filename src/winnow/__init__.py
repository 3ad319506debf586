"""Deep metric learning for image retrieval on classes never seen in training."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("winnow-dml")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> object:
    """Import the heavy parts only when they are asked for."""
    if name == "Embedder":
        from winnow.models import Embedder

        return Embedder
    if name == "Index":
        from winnow.index import Index

        return Index
    raise AttributeError(f"module 'winnow' has no attribute '{name}'")
