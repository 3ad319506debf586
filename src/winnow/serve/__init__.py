"""An index as an HTTP service with a search page."""

from winnow.serve.app import create_app
from winnow.serve.middleware import Limits

__all__ = ["Limits", "create_app"]
