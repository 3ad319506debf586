"""A trained model as a file for other programs."""

from winnow.export.export import FORMATS, Exported, export_model

__all__ = ["FORMATS", "Exported", "export_model"]
