"""`winnow config`."""

from __future__ import annotations

import typer

from winnow.errors import ConfigError, nearest


def config(
    words: list[str] = typer.Argument(None, metavar="[SECTION | CONFIG.yaml | KEY=VALUE]...", help="What to show."),
    as_yaml: bool = typer.Option(False, "--yaml", help="Print the whole config, with what is given, as YAML."),
) -> None:
    """Show every setting with its default and meaning, or a whole config as YAML to start from."""
    import yaml
    from rich.table import Table

    from winnow.cli.console import show
    from winnow.cli.train import read_words
    from winnow.training.config import describe

    words = words or []
    if as_yaml or any("=" in word or word.endswith((".yaml", ".yml")) for word in words):
        print(yaml.safe_dump(read_words(words).model_dump(mode="json"), sort_keys=False), end="")
        return
    keys = list(describe())
    sections = sorted({key.split(".")[0] for key, _, _ in keys})
    for word in words:
        if word not in sections:
            raise ConfigError(f"there is no section '{word}'{nearest(word, sections)}; sections: {', '.join(sections)}")
    table = Table(box=None, pad_edge=False)
    table.add_column("key", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for key, default, meaning in keys:
        if not words or key.split(".")[0] in words:
            table.add_row(key, "" if default is None else str(default), meaning.replace("[", r"\["))
    show(table)
