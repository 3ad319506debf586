"""`winnow explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from winnow.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from winnow.models import Embedder, PoolingMap


def explain(
    paths: list[Path] = typer.Argument(
        ...,
        metavar="RUN... IMAGE...",
        help="Run folders of `winnow train`, or saved models; then images to look at.",
    ),
    out_folder: Path = typer.Option(Path("explained"), "-o", "--out", help="Folder for the PNG files."),
) -> None:
    """Draw what a model looks at: its pooling weights as a heat map over each image.

    Several runs are drawn side by side, one picture for each image.
    """
    from winnow.cli.console import echo
    from winnow.files import make_folder
    from winnow.report.heatmaps import save_explanation

    runs, images = part(paths)
    models = load(runs)
    if not images:
        raise ConfigError(f"name an image after {runs[-1]}")
    seen = {title: model.explain(list(images)) for title, model in models.items()}
    without = [title for title, explanations in seen.items() if explanations[0].weights is None]
    shown: dict[str, list[PoolingMap]] = {title: each for title, each in seen.items() if title not in without}
    if not shown:
        raise ModelError(f"{', '.join(without)} pooling has no weights over the image to show")
    if without:
        echo(f"{', '.join(without)}: no weights over the image to show")
    make_folder(out_folder)
    taken: set[Path] = set()
    for number, path in enumerate(images):
        target = free_name(out_folder, path.stem, taken)
        first = next(iter(shown.values()))[number].image
        maps = {title: each[number].weights for title, each in shown.items()}
        below = {title: each[number].image for title, each in shown.items()}
        save_explanation(target, first, {t: w for t, w in maps.items() if w is not None}, below=below)
        echo(target)


def part(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """Part runs from images: the first is a run, and so are the folders that follow it."""
    count = next((i for i, path in enumerate(paths[1:], 1) if not path.is_dir()), len(paths))
    return paths[:count], paths[count:]


def load(runs: list[Path]) -> dict[str, Embedder]:
    """Load models by what they are called in a picture: their pooling, and the run's name where that is not enough."""
    from winnow.cli.console import echo
    from winnow.models import Embedder
    from winnow.training import RunDir

    models: list[Embedder] = []
    for run in runs:
        folder = RunDir(run)
        if models and not any(place.is_file() for place in (run / "config.json", run / "model" / "config.json")):
            raise ConfigError(f"{run} is a folder without a model: name image files after the runs, as in {run}/*.jpg")
        if folder.config_file.is_file():
            folder.check_finished()
        models.append(Embedder.from_pretrained(run))
        if not models[-1].prototypes_ready:
            which = f"The prototypes of {run}" if len(runs) > 1 else "The prototypes"
            echo(f"{which} were never set from data: this model pools by plain average, so all weights are equal.")
    names = [model.config.pooling.name.upper() for model in models]
    names = [f"{n}, {run.name}" if names.count(n) > 1 else n for n, run in zip(names, runs, strict=True)]
    if len(set(names)) < len(names):
        names = [f"{number}: {name}" for number, name in enumerate(names, 1)]
    return dict(zip(names, models, strict=True))


def free_name(folder: Path, stem: str, taken: set[Path]) -> Path:
    """Return FOLDER/STEM.png, numbered where another image of this call has that name."""
    target, number = folder / f"{stem}.png", 2
    while target in taken:
        target, number = folder / f"{stem}-{number}.png", number + 1
    taken.add(target)
    return target
