"""`winnow embed`, `winnow explain`, and `winnow export`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from winnow.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from winnow.data import ImageSet
    from winnow.models import Embedder, PoolingMap

_output = partial(typer.Option, rich_help_panel="Output")
_model = partial(typer.Option, rich_help_panel="Model")

PRETRAINED = "pretrained"
"""Value of RUN for the default network without training."""
RUN = typer.Argument(..., metavar="RUN", help="Run folder of `winnow train`, saved model, or pretrained")
DATA = typer.Argument(..., metavar="DATA", help="Folder of images, CSV file, or emoji")
DEVICE = _model("auto", "--device", help="Device of the model: auto, cpu, or cuda")
BATCH_SIZE = _model(64, "--batch-size", "--batch", min=1, help="Images in one forward pass")


def embed(
    run: Path = RUN,
    data: str = DATA,
    out_file: Path = _output(..., "-o", "--out", metavar="FILE", help="Output file"),
    batch_size: int = BATCH_SIZE,
    device: str = DEVICE,
) -> None:
    """Write embeddings to .npy, .parquet, or .safetensors.

    Reads RUN and DATA. Writes one vector per image to --out, with paths and labels. A rerun resumes an interrupted
    call.

    Examples:
        winnow embed runs/first photos -o photos.npy
        winnow embed runs/first photos -o photos.parquet --device cpu
    """
    from winnow.cli.console import WorkBars, echo
    from winnow.data import read_collection
    from winnow.index import embed_to_file

    images = read_collection(data)
    print_notes(images)
    model = load_model(run, device)
    with WorkBars() as work:
        made = embed_to_file(model, images, out_file, batch_size=batch_size, progress=work.progress)
    for path, reason in made.skipped:
        echo(f"skipped {path}: {reason}")
    echo(f"{made.path}: {made.count} vectors, {made.embedded} computed now")


def explain(
    paths: list[Path] = typer.Argument(..., metavar="RUN... IMAGE...", help="Run folders or models, then image files"),
    out_folder: Path = typer.Option(
        Path("explained"), "-o", "--out", metavar="DIR", help="Folder of the pictures, one PNG file per image"
    ),
) -> None:
    """Draw pooling weights as heat maps.

    Writes one picture per image to --out. The heat maps of several runs are drawn next to each other.

    Examples:
        winnow explain runs/first photos/oak/1.jpg
        winnow explain runs/gap runs/gsp photos/oak/*.jpg -o heat
    """
    from winnow.cli.console import echo
    from winnow.files import make_folder
    from winnow.report.heatmaps import save_explanation

    runs, images = split_paths(paths)
    models = load_models(runs)
    if not images:
        raise ConfigError(f"IMAGE: no image named. Name image files after {runs[-1]}.")
    shown = pooling_maps(models, images)
    make_folder(out_folder)
    taken: set[Path] = set()
    for number, path in enumerate(images):
        maps = {title: each[number] for title, each in shown.items()}
        weights = {title: one.weights for title, one in maps.items() if one.weights is not None}
        target = free_name(out_folder, path.stem, taken)
        first = next(iter(maps.values())).image
        save_explanation(target, first, weights, below={title: one.image for title, one in maps.items()})
        echo(target)


def export(
    run: Path = RUN,
    out_file: Path = _output(..., "-o", "--out", metavar="FILE", help="Output file"),
    file_format: str = _output("onnx", "--format", metavar="NAME", help="onnx or torchscript"),
) -> None:
    """Export a model to ONNX or TorchScript.

    The exported model takes crops, float32 (B, 3, H, W) in [0, 1], and returns L2-normalized embeddings and pooling
    weights. Its outputs are compared with the model's. The file's metadata describe how to crop images.

    Examples:
        winnow export runs/first -o first.onnx
        winnow export runs/first -o first.pt --format torchscript
    """
    from winnow.cli.console import echo
    from winnow.export import export_model

    made = export_model(load_model(run, "cpu"), out_file, file_format)
    size = "any size" if made.any_size else "the model's crop size"
    echo(f"{made.path}: outputs {' and '.join(made.outputs)}; batches of any size, images of {size}")
    echo(f"largest difference from the model: {made.difference:.1e}")


def print_notes(images: ImageSet) -> None:
    """Print which files of an image set are skipped."""
    from winnow.cli.console import echo

    for text in getattr(images, "notes", ()):
        echo(text)


def load_model(run: Path, device: str) -> Embedder:
    """Load the model of a finished run, a saved model, or the pretrained network alone.

    Raises:
        ConfigError: If the device is unknown or missing.
        ModelError: If the run is not finished, or the folder contains no model.
    """
    from winnow.cli.console import echo
    from winnow.models import Embedder
    from winnow.training.run_dir import RunDir

    found = find_device(device)
    if str(run) == PRETRAINED and not run.exists():
        model = Embedder.pretrained()
        echo(f"{run}: {model.config.backbone.name} with average pooling, no training")
        return model.to(found).eval()
    if (run_dir := RunDir(run)).config_file.is_file():
        run_dir.check_finished()
    model = Embedder.from_pretrained(run, device=found)
    if not model.prototypes_ready:
        echo(f"{run}: the prototypes were never initialized, so the model uses average pooling.")
    return model


def find_device(name: str) -> str:
    """Return the device of a name: cpu, cuda, or auto, which is cuda if there is a GPU.

    Raises:
        ConfigError: If the name is another one, or there is no GPU.
    """
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device: expected auto, cpu, or cuda, got '{name}'. Name one of them.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device: no GPU available. Use --device cpu.")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def split_paths(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """Split arguments into runs and images.

    Runs are the first argument and the folders that follow it.

    Raises:
        ConfigError: If the first argument is a file.
    """
    if paths[0].is_file():
        raise ConfigError(f"RUN: {paths[0]} is a file. Name a run before the images: winnow explain RUN {paths[0]}.")
    count = next((i for i, path in enumerate(paths[1:], 1) if not path.is_dir()), len(paths))
    return paths[:count], paths[count:]


def load_models(runs: list[Path]) -> dict[str, Embedder]:
    """Load models by their titles in a picture.

    The title is the pooling, and the name of the run if several models have the same pooling.
    """
    models: list[Embedder] = []
    for run in runs:
        if models and not any((folder / "config.json").is_file() for folder in (run, run / "model")):
            raise ConfigError(f"{run}: folder without a model. Name image files after the runs, such as {run}/*.jpg.")
        models.append(load_model(run, "cpu"))
    titles = [model.config.pooling.name.upper() for model in models]
    titles = [f"{t}, {run.name}" if titles.count(t) > 1 else t for t, run in zip(titles, runs, strict=True)]
    if len(set(titles)) < len(titles):
        titles = [f"{number}: {title}" for number, title in enumerate(titles, 1)]
    return dict(zip(titles, models, strict=True))


def pooling_maps(models: dict[str, Embedder], images: list[Path]) -> dict[str, list[PoolingMap]]:
    """Return the pooling maps of the models that have weights; the others are named.

    Raises:
        ModelError: If no model has weights.
    """
    from winnow.cli.console import echo

    maps = {title: model.explain(list(images)) for title, model in models.items()}
    without = [title for title, each in maps.items() if each[0].weights is None]
    if len(without) == len(maps):
        raise ModelError(f"{', '.join(without)}: this pooling has no weights to draw. Choose a run with another one.")
    if without:
        echo(f"{', '.join(without)}: this pooling has no weights to draw")
    return {title: each for title, each in maps.items() if title not in without}


def free_name(folder: Path, stem: str, taken: set[Path]) -> Path:
    """Return FOLDER/STEM.png, numbered if another image of this call has the name."""
    target, number = folder / f"{stem}.png", 2
    while target in taken:
        target, number = folder / f"{stem}-{number}.png", number + 1
    taken.add(target)
    return target
