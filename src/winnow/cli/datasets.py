"""`winnow datasets`: list, download, and verify benchmark datasets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from winnow.cli.help import Entry, render_group, screen_width
from winnow.errors import DataError

if TYPE_CHECKING:
    from winnow.data.datasets import Dataset, MissingImages

HELP = """List, download, and verify benchmark datasets.

Examples:
    winnow datasets list
    winnow datasets get cub200 --from ~/CUB_200_2011.tgz
    winnow datasets verify cub200 data/cub200
"""

_NAME = typer.Argument(..., metavar="NAME", help="Dataset; `winnow datasets list` lists all")
_ACCEPT = typer.Option(
    False, "--accept-missing", "--allow-missing", help="Use the dataset without its missing images; results list them"
)


def list_datasets() -> None:
    """List all benchmark datasets and their folders."""
    from winnow.data.datasets import DATASETS

    entries = []
    for name, one in DATASETS.items():
        found = f"; in {one.default_root}" if one.default_root.is_dir() else ""
        entries.append(Entry(name, f"{one.title}: {one.about}{found}"))
    print(render_group("Datasets", entries, screen_width()))


def dataset_info(
    name: str = _NAME, as_json: bool = typer.Option(False, "--json", help="Print JSON")
) -> None:  # fmt: skip
    """Show images, classes, license terms, layout, and sources."""
    from winnow.cli.console import echo
    from winnow.data.datasets import DATASETS

    one = DATASETS[name]
    facts = {
        "name": one.name, "title": one.title, "about": one.about, "images": dict(one.counts),
        "classes": dict(one.classes), "R@k at": list(one.ks), "terms": one.terms, "home": one.home,
        "layout": one.layout, "sources": [{"url": source.url, "md5": source.md5} for source in one.sources],
        "folder": str(one.default_root),
    }  # fmt: skip
    if as_json:
        print(json.dumps(facts))
        return
    sources = [f"{source.url} (md5 {source.md5 or 'unknown'})" for source in one.sources]
    facts["sources"] = sources or ["not public; request the files from the owners and pass them to --from"]
    for key, value in facts.items():
        for line in value if key == "sources" and isinstance(value, list) else [value]:
            echo(f"{key}: {_counts(line) if isinstance(line, dict) else line}")


def get_dataset(
    name: str = _NAME,
    source: Path | None = typer.Option(
        None, "--from", metavar="PATH", help="Archive, folder of archives, or folder of files [default: download]"
    ),
    target: Path | None = typer.Option(None, "--to", metavar="DIR", help="Output folder [default: data/NAME]"),
    accept_missing: bool = _ACCEPT,
) -> None:
    """Download a dataset, or copy it from an archive or a folder.

    Resized copies of the images are accepted.

    Examples:
        winnow datasets get cars196
        winnow datasets get cub200 --from ~/CUB_200_2011.tgz
    """
    from winnow.cli.console import WorkBars, echo
    from winnow.data.datasets import DATASETS, prepare_dataset

    one = DATASETS[name]
    folder = target or one.default_root
    if source is None:
        echo(f"{one.title}: {one.terms}; see {one.home}")
    with WorkBars() as work:
        missing = prepare_dataset(one, folder, source=source, progress=work.progress)
    report_missing(one, folder, missing, accept_missing)


def verify_dataset(
    name: str = _NAME,
    folder: Path | None = typer.Argument(None, metavar="[FOLDER]", help="Folder [default: data/NAME]"),
    accept_missing: bool = _ACCEPT,
) -> None:
    """Count images and classes, and list missing images."""
    from winnow.cli.console import echo
    from winnow.data.datasets import DATASETS

    one = DATASETS[name]
    root = folder or one.default_root
    contents, missing = one.check(root)
    for text in contents.notes:
        echo(text)
    report_missing(one, root, missing, accept_missing)


def report_missing(one: Dataset, root: Path, missing: Sequence[MissingImages], accept: bool) -> None:
    """Report a complete dataset, or list what is missing and record it on request.

    Raises:
        DataError: If images are missing and not accepted, or a split has images that were not published.
    """
    from winnow.cli.console import echo

    if not missing:
        one.accept_missing(root, [])
        echo(f"{root}: {one.title} is complete: {_counts(one.counts)} images")
        return
    for split in missing:
        for name in split.names:
            echo(f"missing from {split.part}: {name}")
    summary = "; ".join(split.describe(0) for split in missing)
    if any(split.found > split.expected for split in missing):
        raise DataError(f"{root}: {summary}. Remove the images that are not part of the dataset.")
    if not accept:
        if all(one.is_accepted(root, split) for split in missing):
            raise DataError(f"{root}: {summary}. The missing images are accepted; all results list them.")
        raise DataError(f"{root}: {summary}. Pass --accept-missing to use the dataset without them.")
    one.accept_missing(root, missing)
    echo(f"{root}: {summary}; recorded in {root / 'missing.json'}, and listed with every result")


def _counts(counts: Mapping[str, int]) -> str:
    return " / ".join(f"{split} {count:,}" for split, count in counts.items())


COMMANDS: dict[str, Callable[..., None]] = {
    "list": list_datasets, "info": dataset_info, "get": get_dataset, "verify": verify_dataset,
}  # fmt: skip
"""Subcommands of `winnow datasets` by name."""
