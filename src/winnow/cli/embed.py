"""`winnow embed`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from winnow.models import Embedder

RUN = typer.Argument(..., metavar="RUN", help="A run folder of `winnow train`, or a saved model.")
DATA = typer.Argument(..., metavar="DATA", help="A folder of images, a CSV file that lists some, or emoji.")
DEVICE = typer.Option("auto", "--device", help="auto, cpu or cuda.")
BATCH = typer.Option(64, "--batch", min=1, help="Images embedded at a time.")


def embed(
    run: Path = RUN,
    data: str = DATA,
    out_file: Path = typer.Option(..., "-o", "--out", help="A .npy, .parquet or .safetensors file."),
    batch: int = BATCH,
    device: str = DEVICE,
) -> None:
    """Embed images into a file, with their paths and labels; an interrupted call goes on where it stopped."""
    from winnow.cli.console import echo
    from winnow.cli.progress import ConsoleCallback
    from winnow.data import read_collection
    from winnow.index import embed_to_file

    with ConsoleCallback() as monitor:
        made = embed_to_file(
            load_model(run, device), read_collection(data), out_file, batch_size=batch, progress=monitor.progress
        )
    for path, reason in made.skipped:
        echo(f"skipped {path}: {reason}")
    echo(f"{made.path}: {made.count} vectors, {made.embedded} made now")


def load_model(run: Path, device: str) -> Embedder:
    """Load the model of a finished run or a saved one, ready to embed."""
    import torch

    from winnow.cli.console import echo
    from winnow.errors import ConfigError
    from winnow.models import Embedder
    from winnow.training import RunDir

    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device {device}: must be auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU here; leave the option out")
    where = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    folder = RunDir(run)
    if folder.config_file.is_file():
        folder.check_finished()
    model = Embedder.from_pretrained(run, device=where)
    if not model.prototypes_ready:
        echo("The prototypes were never set from data: this model pools by plain average.")
    return model
