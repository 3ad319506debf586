"""`winnow export`."""

from __future__ import annotations

from pathlib import Path

import typer

from winnow.cli.embed import RUN


def export(
    run: Path = RUN,
    out_file: Path = typer.Option(..., "-o", "--out", help="The file to write."),
    file_format: str = typer.Option("onnx", "--format", help="onnx or torchscript."),
) -> None:
    """Write a model as one file for other programs, and check what it computes.

    It takes crops, float32 (B, 3, H, W) in [0, 1], and returns normalised embeddings and the weights over the image.
    How images become crops is told in the file's metadata.
    """
    from winnow.cli.console import echo
    from winnow.cli.embed import load_model
    from winnow.export import export_model

    made = export_model(load_model(run, "cpu"), out_file, file_format)
    size = "any size" if made.any_size else "the model's own size only"
    echo(f"{made.path}: {' and '.join(made.outputs)}; batches of any size, images of {size}")
    echo(f"largest difference from the model: {made.difference:.1e}")
