"""An index of images: their vectors, where they are, what they look like, and the model that made the vectors."""

from winnow.index.changes import Changes
from winnow.index.entries import Entry
from winnow.index.index import Hits, Index
from winnow.index.rerank import search_again
from winnow.index.vector_file import EmbeddedFile, embed_to_file

__all__ = ["Changes", "EmbeddedFile", "Entry", "Hits", "Index", "embed_to_file", "search_again"]
