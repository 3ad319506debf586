"""Names of timm's networks without an import of timm, which takes seconds.

The files of `timm.models` declare networks with `@register_model`, and old names with `register_model_deprecations`.
An imported timm is asked instead, and so is one whose files declare networks in another form.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_NETWORK = re.compile(r"^@register_model\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
_OLD_NAMES = re.compile(r"^register_model_deprecations\(__name__, \{\n(.*?)^\}\)", re.MULTILINE | re.DOTALL)
_OLD_NAME = re.compile(r" +['\"](\w+)['\"] *:")
_IMPORT = "from ._registry import "


class DeclaredNames(NamedTuple):
    """Names of networks in the files of timm: those that it lists, and old ones that it accepts as well."""

    listed: frozenset[str]
    old: frozenset[str]


def is_timm_network(name: str) -> bool:
    """Return whether timm has a network of a name without a tag, old names included."""
    if (names := _declared()) is not None:
        return name in names.listed or name in names.old
    import timm

    return bool(timm.is_model(name))


def list_timm_networks() -> frozenset[str]:
    """Return the names of all networks of timm, without old names."""
    if (names := _declared()) is not None:
        return names.listed
    import timm

    return frozenset(timm.list_models())


def _declared() -> DeclaredNames | None:
    """Return the names in the files of timm; None if timm itself must answer, which is then importable."""
    if "timm" not in sys.modules:
        spec = find_spec("timm")
        names = None if spec is None else read_names(Path((spec.submodule_search_locations or [""])[0]) / "models")
        if names is not None:
            return names
    from winnow.vision import ensure_torchvision

    ensure_torchvision()
    return None


@cache
def read_names(folder: Path) -> DeclaredNames | None:
    """Return the names that the files of a folder declare; None if there are none, or one has another form."""
    listed, old = set[str](), set[str]()
    for path in folder.rglob("*.py"):
        if path.name.startswith("_"):
            continue
        text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        uses = [line for line in text.splitlines() if "register_model" in line]
        networks, old_names = _NETWORK.findall(text), _OLD_NAMES.findall(text)
        # Every use of the two functions is a declaration that was read, or their import.
        if len(uses) != len(networks) + len(old_names) + sum(line.startswith(_IMPORT) for line in uses):
            return None
        listed.update(networks)
        for block in old_names:
            entries = [_OLD_NAME.match(line) for line in block.splitlines() if line.strip()]
            if not all(entries):
                return None
            old.update(entry[1] for entry in entries if entry)
    return DeclaredNames(frozenset(listed), frozenset(old)) if listed else None
