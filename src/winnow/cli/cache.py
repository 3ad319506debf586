"""`winnow cache`."""

from __future__ import annotations

import typer


def cache(clear: bool = typer.Option(False, "--clear", help="Remove all cached features")) -> None:
    """Show or clear the cache of a frozen backbone's features.

    Runs read features from the cache instead of computing them again. Above WINNOW_CACHE_GB (default 8) the least
    recently used features are removed. WINNOW_CACHE names another folder.

    Examples:
        winnow cache
        winnow cache --clear
    """
    from winnow.cli.console import echo
    from winnow.training.features import cache_folder, cache_limit, cached_chunks, trim_cache

    before = sum(one.size for one in cached_chunks())
    if clear:
        trim_cache(0)
        after = sum(one.size for one in cached_chunks())
        echo(f"{cache_folder()}: removed {(before - after) / 1e9:.2f} GB of features")
    else:
        echo(f"{cache_folder()}: {before / 1e9:.2f} GB of features, at most {cache_limit() / 1e9:g} GB")
