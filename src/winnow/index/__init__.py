"""Searchable image index: a folder of vectors, thumbnails, and their model."""

from winnow.index.index import Hits, Index, reranked_search
from winnow.index.storage import Entry
from winnow.index.update import Changes
from winnow.index.vector_file import EmbeddedFile, embed_to_file

__all__ = ["Changes", "EmbeddedFile", "Entry", "Hits", "Index", "embed_to_file", "reranked_search"]
