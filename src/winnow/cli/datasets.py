"""`winnow datasets`: the benchmark sets, how they are got, and whether they are whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from winnow.errors import DataError

if TYPE_CHECKING:
    from winnow.data.datasets import Dataset, MissingImages

HELP = "Benchmark sets: what they are, how they are got, and whether they are whole."

_NAME = typer.Argument(..., metavar="NAME", help="Which set; `winnow datasets list` names them.")
_MISSING = typer.Option(
    False, "--allow-missing", help="Note what is missing in the folder; every result made with it tells."
)


def list_() -> None:
    """Name the benchmark sets."""
    from rich.table import Table

    from winnow.cli.console import show
    from winnow.data.datasets import DATASETS

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    table.add_column("here", no_wrap=True)
    for name, one in DATASETS.items():
        here = one.default_root
        table.add_row(name, f"{one.title}: {one.about}", str(here) if here.is_dir() else "")
    show(table)


def info(name: str = _NAME, as_json: bool = typer.Option(False, "--json", help="Print JSON instead.")) -> None:
    """Tell what a set is: its images and classes, terms, layout, and where it can be had."""
    from winnow.cli.console import echo
    from winnow.data.datasets import DATASETS

    one = DATASETS[name]
    facts = {
        "name": one.name,
        "title": one.title,
        "about": one.about,
        "images": dict(one.counts),
        "classes": dict(one.classes),
        "R@k at": list(one.ks),
        "terms": one.terms,
        "home": one.home,
        "layout": one.layout,
        "sources": [{"url": source.url, "md5": source.md5} for source in one.sources],
        "folder": str(one.default_root),
    }
    if as_json:
        print(json.dumps(facts))
        return
    for key, value in facts.items():
        if key == "sources":
            for source in one.sources:
                echo(f"source: {source.url} (md5 {source.md5 or 'not known'})")
            if not one.sources:
                echo("source: none that is public; ask its owners, then use --from")
        else:
            echo(f"{key}: {_numbers(value) if isinstance(value, dict) else value}")


def get(
    name: str = _NAME,
    source: Path = typer.Option(
        None, "--from", help="An archive, a folder of archives or a folder with the set's files; default the web."
    ),
    target: Path = typer.Option(None, "--to", help="Folder to put it in; default data/NAME."),
    allow_missing: bool = _MISSING,
) -> None:
    """Download a set, or take it from an archive or a folder; resized copies serve too."""
    from winnow.cli.console import echo
    from winnow.cli.progress import ConsoleCallback
    from winnow.data.datasets import DATASETS
    from winnow.data.datasets import prepare_dataset as fetch

    one = DATASETS[name]
    place = target or one.default_root
    if source is None:
        echo(f"{one.title}: {one.terms}; see {one.home}")
    with ConsoleCallback() as monitor:
        short = fetch(one, place, source=source, progress=monitor.progress)
    _tell(one, place, short, allow_missing)


def verify(
    name: str = _NAME,
    folder: Path = typer.Argument(None, metavar="[FOLDER]", help="Where it is; default data/NAME."),
    allow_missing: bool = _MISSING,
) -> None:
    """Count a set's images and classes, and name what is missing."""
    from winnow.data.datasets import DATASETS

    one = DATASETS[name]
    place = folder or one.default_root
    _, short = one.check(place)
    _tell(one, place, short, allow_missing)


def _tell(one: Dataset, place: Path, short: list[MissingImages], allow_missing: bool) -> None:
    """Say that a set is whole, or what is missing, which is noted or an error."""
    from winnow.cli.console import echo

    if not short:
        one.accept_missing(place, [])
        echo(f"{place}: {one.title} is whole: {_numbers(one.counts)} images")
        return
    for part in short:
        for missing in part.names:
            echo(f"missing from {part.part}: {missing}")
    told = "; ".join(part.describe(0) for part in short)
    if any(part.found > part.expected for part in short):
        raise DataError(f"{place}: {told}; there are more images than were published: remove what is not of the set")
    if not allow_missing:
        if all(one.is_accepted(place, part) for part in short):
            raise DataError(f"{place}: {told}; that is noted, so that it can be used, and every result tells")
        raise DataError(f"{place}: {told}; --allow-missing notes that, and every result tells")
    one.accept_missing(place, short)
    echo(f"{place}: {told}; noted in {place / 'missing.json'}, and told with every result")


def _numbers(counts: object) -> str:
    assert isinstance(counts, dict), "part to number"
    return " / ".join(f"{part} {count:,}" for part, count in counts.items())


COMMANDS: dict[str, Callable[..., None]] = {"list": list_, "info": info, "get": get, "verify": verify}
