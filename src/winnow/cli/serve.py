"""`winnow serve`."""

from __future__ import annotations

from pathlib import Path

import typer

from winnow.errors import MissingExtraError


def serve(
    index: Path = typer.Argument(..., metavar="INDEX", help="An index made by `winnow index`."),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on; 0.0.0.0 lets other machines in."),
    port: int = typer.Option(8765, "--port", min=0, max=65535, help="Port to listen on; 0 takes any free one."),
    token: str | None = typer.Option(
        None, "--token", envvar="WINNOW_TOKEN", help="What requests have to send; rather set WINNOW_TOKEN."
    ),
    device: str = typer.Option("cpu", "--device", help="Where the model runs: cpu or cuda."),
    upload_mb: float = typer.Option(20, "--upload-mb", min=0.01, help="Largest upload in megabytes."),
    megapixels: float = typer.Option(50, "--megapixels", min=0.01, help="Most pixels of an image, in millions."),
    requests: int = typer.Option(64, "--requests", min=1, help="Requests worked on or waiting at a time."),
    seconds: float = typer.Option(30, "--seconds", min=0.1, help="Time for a request."),
    batch: int = typer.Option(16, "--batch", min=1, help="Most images in one call of the model."),
) -> None:
    """Serve an index over HTTP, with a web page to search it and look at what the model looks at."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError("fastapi and uvicorn", "serve", "`winnow serve`") from None
    from winnow.cli.console import echo
    from winnow.index import Index
    from winnow.serve import Limits
    from winnow.serve.run import address_of, bind, is_loopback
    from winnow.serve.run import serve as run

    opened = Index.open(index, device=device)
    _ = opened.model  # read before an address is told: one that does not fit is an error
    limits = Limits(
        upload_bytes=int(upload_mb * 1e6), pixels=int(megapixels * 1e6), requests=requests, seconds=seconds, batch=batch
    )
    listening = bind(host, port)
    where = address_of(listening, host)
    echo(f"{len(opened)} images on {where}{'/#token=TOKEN' if token else ''} (Ctrl-C ends it)")
    if not is_loopback(host) and not token:
        echo("Anybody who can reach this machine can search: set WINNOW_TOKEN, or stay on 127.0.0.1.")
    run(opened, listening, host, limits=limits, token=token)
