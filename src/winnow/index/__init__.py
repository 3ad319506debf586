"""An index of images: their vectors, where they are, what they look like, and the model that made the vectors."""

from winnow.index.entries import Entry
from winnow.index.index import Changes, Hits, Index

__all__ = ["Changes", "Entry", "Hits", "Index"]
