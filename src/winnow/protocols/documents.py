"""What the documents report for a row of a protocol."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from winnow.protocols.kinds import Protocol


@dataclass(frozen=True)
class Reported:
    """A number of the documents, in percent.

    Attributes:
        value: The number.
        std: The deviation it is given with, if any.
        table: Where it stands.
        backbone: The network behind it.
        doubt: Why it may be wrong, if so.
    """

    value: float
    std: float | None
    table: str
    backbone: str
    doubt: str = ""


def reported(protocol: Protocol, target: str, method: str, backbone: str, dim: int, metric: str) -> Reported | None:
    """Look a number up; of the fair protocol there are numbers for BN-Inception only, of two chapters.

    Args:
        protocol: Its chapter's table goes first.
        target: Name of the set.
        method: Name of the method.
        backbone: Name of the network, which only the conventional protocol has several of.
        dim: Size of the embedding that is judged.
        metric: `MAP@R` or `P@1`.
    """
    found: list[Reported] = []
    content = _content()
    for table, kind, network, size, on, name, measure, value, std in content["rows"]:
        if (kind, size, on, name, measure) != (protocol.name, dim, target, method, metric):
            continue
        if protocol.on_test and network != backbone:
            continue
        doubt = content["doubtful"].get(f"{table} {network} {on} {name} {size} {measure}", "")
        found.append(Reported(value, std, table, network, doubt))
    return min(found, key=lambda one: (not one.table.startswith(str(protocol.chapter)), one.std is None), default=None)


@cache
def _content() -> dict[str, Any]:
    text = files("winnow.protocols").joinpath("documents.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
