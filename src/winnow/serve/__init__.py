"""An index as an HTTP service, with a page to look at it."""

from winnow.serve.app import create_app
from winnow.serve.limits import Limits

__all__ = ["Limits", "create_app"]
