"""`winnow explain`."""

from __future__ import annotations

from pathlib import Path

import typer

from winnow.errors import ModelError


def explain(
    run: Path = typer.Argument(..., metavar="RUN", help="A run folder of `winnow train`, or a saved model."),
    images: list[Path] = typer.Argument(..., metavar="IMAGE...", help="Images to look at."),
    out_folder: Path = typer.Option(Path("explained"), "--out", help="Folder for the PNG files."),
) -> None:
    """Draw what a model looks at: its pooling weights as a heat map over each image."""
    from winnow.cli.console import say
    from winnow.files import make_folder
    from winnow.models import Embedder
    from winnow.report.heatmap import save_explanation
    from winnow.training import RunFolder

    folder = RunFolder(run)
    if folder.config_file.is_file():
        folder.check_finished()
    embedder = Embedder.from_pretrained(run)
    if not embedder.is_ready:
        say("The prototypes were never set from data: this model pools by plain average, so all weights are equal.")
    make_folder(out_folder)
    name = embedder.config.pooling["name"].upper()
    taken: set[Path] = set()
    for path, seen in zip(images, embedder.explain(list(images)), strict=True):
        if seen.weights is None:
            raise ModelError(f"{name} pooling has no weights over the image to show")
        target = free_name(out_folder, path.stem, taken)
        save_explanation(target, seen.image, {name: seen.weights})
        say(target)


def free_name(folder: Path, stem: str, taken: set[Path]) -> Path:
    """Return FOLDER/STEM.png, numbered where another image of this call has that name."""
    target, number = folder / f"{stem}.png", 2
    while target in taken:
        target, number = folder / f"{stem}-{number}.png", number + 1
    taken.add(target)
    return target
