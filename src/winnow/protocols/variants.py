"""Methods with settings of their own, such as `c2+gsp,pooling.eps=20`: variants that one table compares."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from winnow.protocols.methods import SEPARATOR
from winnow.training.sweep import at_commas

LONGEST = 100  # characters of a folder's name, which most file systems end at 255 bytes


@dataclass(frozen=True)
class Variant:
    """A method, and settings that are its alone.

    Attributes:
        name: Of the method, such as `c2+gsp`.
        settings: Words with `=`, none for the method as it is; they go before those of all runs.
    """

    name: str
    settings: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Variant:
        """Take a method's name and the settings after its commas apart."""
        name, *settings = at_commas(text)
        return cls(name.lower(), tuple(settings))

    def __str__(self) -> str:
        return ",".join((self.name, *self.settings))

    @property
    def folder(self) -> str:
        """What its folder is called: its text, or where a file system may not take it what is left and a mark of it."""
        text = str(self)
        plain = re.sub(r"[^\w.,=+-]+", "-", text, flags=re.ASCII)
        if plain == text and len(text) <= LONGEST and not text.endswith("."):
            return text
        return f"{plain[:LONGEST]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def parts(self) -> frozenset[str]:
        """What it is made of: the loss, what is added to it, and its settings."""
        return frozenset((*self.name.split(SEPARATOR), *self.settings))


def is_method(word: str) -> bool:
    """Whether a word of the command line names a method; otherwise it is a setting of all runs."""
    return "=" not in word.partition(",")[0]
