"""`winnow recipes`: recipes with published and measured numbers, as text of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import typer

from winnow.cli.help import Entry, render_group, screen_width

if TYPE_CHECKING:
    from winnow.training.recipes import MeasuredRecall, PublishedRecall, Recipe, Settings

DATASETS = {"cub200": "CUB-200", "cars196": "Cars196", "sop": "SOP", "inshop": "In-shop"}
"""Datasets of the published numbers, and their headings."""
UNKNOWN = "–"
WIDTH = 80
NUMBER, NAME = 14, 16  # widths of columns
RUNS = 3
"""Runs of the conventional protocol."""


def recipes(
    name: str = typer.Argument(None, metavar="[RECIPE]", help="Recipe whose settings are listed"),
) -> None:
    """List recipes: complete settings with their source and published number.

    Without RECIPE the numbers of all recipes are listed. With RECIPE each setting is listed with its reason, then the
    source, the published and the measured numbers, and the commands.

    Examples:
        winnow recipes
        winnow recipes proxy-anchor
        winnow train recipe=proxy-anchor data=cub200
        winnow train recipe=common loss=ms data=photos
    """
    from winnow.training.recipes import find_recipe

    print(overview() if name is None else describe(find_recipe(name)))


def overview() -> str:
    """Return the table of all recipes, and what they are."""
    from winnow.training.recipes import RECIPES, measured_recalls

    measured = measured_recalls()
    titles = "".join(f"{title:<{NUMBER}}" for title in DATASETS.values())
    lines = ["R@1 in percent, ResNet-50, 512-D: published/ours, best of three runs", ""]
    lines.append(f"{'recipe':<{NAME}}{titles}min")
    for one in RECIPES.values():
        methods = [f"recipe={one.name}", *(each for each in measured if each.startswith(f"recipe={one.name},"))]
        lines += [_line(one, method, measured.get(method, {})) for method in methods]
    about = [Entry(one.name, one.about) for one in RECIPES.values()]
    legend = (
        f"min: minutes of training on CUB-200, mean over runs. {UNKNOWN}: unknown, or not run yet. (n): best of n runs."
        " `winnow recipes NAME` lists settings, reasons, sources, and commands."
    )
    return "\n\n".join(["\n".join(lines), render_group("Recipes", about, screen_width()), _filled(legend)])


def _line(recipe: Recipe, method: str, measured: Mapping[str, MeasuredRecall]) -> str:
    """Return the numbers of a method, which is a recipe or a recipe with further settings."""
    published = recipe.published if method == f"recipe={recipe.name}" else {}
    cells = [f"{published_text(published.get(data))}/{measured_text(measured.get(data))}" for data in DATASETS]
    minutes = f"{measured['cub200'].minutes:.0f}" if "cub200" in measured else UNKNOWN
    name = method.removeprefix("recipe=")
    if len(name) > WIDTH:
        name = name.replace(",", ",\n  ")  # a line for each further setting
    start = f"{name:<{NAME}}" if len(name) < NAME else f"{name}\n{'':<{NAME}}"
    return f"{start}{''.join(f'{cell:<{NUMBER}}' for cell in cells)}{minutes}"


def published_text(number: PublishedRecall | None) -> str:
    """Return a published number with one decimal."""
    return UNKNOWN if number is None else f"{number.value:.1f}"


def measured_text(number: MeasuredRecall | None) -> str:
    """Return a measured number with one decimal, and the number of runs if the protocol has more."""
    if number is None:
        return UNKNOWN
    return f"{number.value:.1f}" if number.runs >= RUNS else f"{number.value:.1f} ({number.runs})"


def describe(recipe: Recipe) -> str:
    """Return the settings of a recipe with their reasons, its source, numbers, and commands."""
    blocks = [_filled(f"{recipe.name}: {recipe.about}"), _filled(f"Source: {recipe.citation}")]
    blocks.append(_group("Settings", recipe.explained("", proxies=False)))
    if recipe.with_proxies:
        blocks.append(_group("With a loss that is compared with proxies", recipe.with_proxies))
    blocks += [_group(f"On {DATASETS[data]} instead", settings) for data, settings in recipe.by_dataset.items()]
    if recipe.differences:
        blocks.append(
            "\n".join(["Differences from the source", *(_filled(f"- {one}", 4) for one in recipe.differences)])
        )
    blocks.append("\n".join(["Numbers (R@1 in percent, ResNet-50, 512-D)", *_numbers(recipe)]))
    return "\n\n".join(blocks)


def _numbers(recipe: Recipe) -> Iterator[str]:
    """Yield the published and measured numbers by dataset, with the command where none is measured."""
    from winnow.training.recipes import measured_recalls

    measured = measured_recalls().get(f"recipe={recipe.name}", {})
    for data, title in DATASETS.items():
        if (published := recipe.published.get(data)) is not None:
            yield _filled(f"  {title}, published: {published.value:.1f} ({published.source})", 4)
        if (ours := measured.get(data)) is not None:
            spread = "" if ours.std is None else f" ± {ours.std:.1f}"
            yield _filled(
                f"  {title}, ours: {ours.value:.1f}, runs: {ours.runs}, the best by R@1; mean {ours.mean:.1f}{spread}; "
                f"{ours.minutes:.0f} min each on {ours.gpu} ({ours.source})",
                4,
            )
        else:
            yield f"  {title}, ours: not run yet. Run it:"
            yield f"    winnow protocol conventional {data} recipe={recipe.name}"


def _group(title: str, settings: Settings) -> str:
    return render_group(title, [Entry(one.text, one.reason) for one in settings], screen_width())


def _filled(text: str, indent: int = 0) -> str:
    return textwrap.fill(text, screen_width(), subsequent_indent=" " * indent, break_on_hyphens=False)
