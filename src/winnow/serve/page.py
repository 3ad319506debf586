"""The files of the web page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources

from fastapi import FastAPI, Request, Response

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def add_page(app: FastAPI) -> None:
    """Add the files of the page as routes, read once: no path from a request reaches the disk."""
    for file in (resources.files(__package__) / "website").iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            address = "/" if file.name == "index.html" else f"/{file.name}"
            app.add_route(address, _always(file.read_bytes(), kind), methods=["GET"], include_in_schema=False)


def _always(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": "no-cache"})

    return answer
