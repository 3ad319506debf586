"""`winnow index`."""

from __future__ import annotations

from pathlib import Path

import typer

from winnow.cli.embed import BATCH, DATA, DEVICE, RUN
from winnow.errors import ConfigError


def index(
    run: Path = RUN,
    data: str = DATA,
    out_folder: Path = typer.Option(..., "-o", "--out", help="Folder of the index; one that is there is changed."),
    kind: str = typer.Option(None, "--kind", help="exact (default), or hnsw or ivfpq for millions of images."),
    half: bool = typer.Option(False, "--half", help="Store vectors in float16."),
    prune: bool = typer.Option(False, "--prune", help="Also take out what DATA does not list any more."),
    remove: bool = typer.Option(False, "--remove", help="Take DATA's images out instead of putting them in."),
    batch: int = BATCH,
    device: str = DEVICE,
) -> None:
    """Make images searchable, or bring an index up to date: only new and changed files are embedded.

    The index holds a copy of the model and small pictures, and needs neither RUN nor DATA to be searched.
    """
    from winnow.cli.console import echo
    from winnow.cli.embed import load_model
    from winnow.cli.progress import ConsoleCallback
    from winnow.data import read_collection
    from winnow.index import Index
    from winnow.index.embedding import full_name
    from winnow.index.finders import check_kind
    from winnow.index.storage import MANIFEST

    if remove and prune:
        raise ConfigError("--remove and --prune exclude each other")
    images = read_collection(data)
    model = load_model(run, device)
    with ConsoleCallback() as monitor:
        if (out_folder / MANIFEST).is_file():
            found = Index.open(out_folder, device=model.device)
            found.check_model(model)
            if kind is not None:
                check_kind(kind)
            if half and found.manifest.dtype != "float16":
                raise ConfigError(f"{out_folder} stores float32 already: leave --half out, or build a new index")
            if remove:
                changes = found.remove([full_name(images, number) for number in range(len(images))])
            else:
                changes = found.add(images, prune=prune, batch_size=batch, progress=monitor.progress)
            if kind is not None and kind != found.kind:
                found.convert(kind)
        elif remove:
            raise ConfigError(f"{out_folder} is no index to take images out of")
        else:
            found = Index.build(
                model, images, out_folder, kind=kind or "exact", dtype="float16" if half else "float32",
                batch_size=batch, progress=monitor.progress,
            )  # fmt: skip
            assert found.built is not None, "it was just built"
            changes = found.built
    for path, reason in changes.skipped:
        echo(f"skipped {path}: {reason}")
    echo(
        f"{out_folder}: {len(found)} images; {changes.added} added, {changes.updated} changed, {changes.removed} taken "
        f"out, {changes.unchanged} as they were ({changes.embedded} embedded)"
    )
    if found.manifest.recall is not None:
        echo(f"{found.kind}: finds {100 * found.manifest.recall:.1f} % of the 10 nearest that exact search finds")
