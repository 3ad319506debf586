"""`winnow serve`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from winnow.cli.models import find_device
from winnow.errors import MissingExtraError

_network = partial(typer.Option, rich_help_panel="Network")
_limit = partial(typer.Option, rich_help_panel="Limits")
_model = partial(typer.Option, rich_help_panel="Model")


def serve(
    index: Path = typer.Argument(..., metavar="INDEX", help="Index folder, written by `winnow index`"),
    host: str = _network("127.0.0.1", "--host", help="Address to listen on; 0.0.0.0 admits other machines"),
    port: int = _network(8765, "--port", min=0, max=65535, help="Port to listen on; 0 takes a free one"),
    allow_host: list[str] = _network(
        [], "--allow-host", metavar="NAME", help="Further host name of requests, such as that of a proxy; repeatable"
    ),
    token: str | None = _network(None, "--token", envvar="WINNOW_TOKEN", help="Token of requests; or set WINNOW_TOKEN"),
    max_upload_mb: float = _limit(20, "--max-upload-mb", "--upload-mb", min=0.01, help="Largest upload, in MB"),
    megapixels: float = _limit(50, "--max-megapixels", "--megapixels", min=0.01, help="Largest image, in megapixels"),
    max_requests: int = _limit(64, "--max-requests", "--requests", min=1, help="Requests that run or wait"),
    cache_mb: float = _limit(64, "--cache-mb", min=0, help="Memory of recent images, in MB"),
    timeout: float = _limit(30, "--timeout", "--seconds", min=0.1, help="Seconds for a request, with its upload"),
    device: str = _model("cpu", "--device", help="Device of the model: cpu or cuda"),
    batch_size: int = _model(16, "--batch-size", "--batch", min=1, help="Images in one forward pass"),
) -> None:
    """Serve an index over HTTP with a search page.

    Prints the address of the page. Ctrl-C stops the service.

    Examples:
        winnow serve photos.index
        winnow serve photos.index --max-upload-mb 50 --port 8080
        WINNOW_TOKEN=secret winnow serve photos.index --host 0.0.0.0
    """
    _check_extra()
    from winnow.cli.console import echo
    from winnow.index import Index
    from winnow.serve import Limits, app

    opened = Index.open(index, device=find_device(device))
    _ = opened.model  # loaded before the address is printed, so a damaged model is an error
    limits = Limits(
        max_upload_bytes=int(max_upload_mb * 1e6), max_pixels=int(megapixels * 1e6), max_requests=max_requests,
        timeout=timeout, batch_size=batch_size, cache_bytes=int(cache_mb * 1e6),
    )  # fmt: skip
    listener = app.bind(host, port)
    echo(f"{len(opened)} images on {app.base_url(listener, host)}{'/#token=TOKEN' if token else ''} (Ctrl-C stops)")
    if not app.is_loopback(host) and not token:
        echo("Every machine that can reach this one can search. Set WINNOW_TOKEN, or listen on 127.0.0.1.")
    app.serve(opened, listener, host, limits=limits, token=token, names=allow_host)


def _check_extra() -> None:
    """Raise `MissingExtraError` if a package of the extra `serve` is missing."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError("fastapi, prometheus-client, and uvicorn", "serve", "`winnow serve`") from None
