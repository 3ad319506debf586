"""Turn the equations of every page, docstrings included, into MathML while the site is built.

Browsers draw MathML themselves, so a reader needs neither a script nor a request to anywhere.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

_MARKED = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<block>.*?)\\\])</(?P=tag)>', re.DOTALL
)

# Commands that latex2mathml lacks, and their replacements.
_REWRITES = (
    (re.compile(r"\\arg\s*\\(min|max)(?![A-Za-z])"), r"\\operatorname{arg\1}"),
    (re.compile(r"\\arg(?![A-Za-z])"), r"\\operatorname{arg}"),
)
_NAME = re.compile(r"<m[io]>([A-Za-z]{2,})</m[io]>")
_NORM = "&#x02016;"
_OPEN = r"<mo[^>]*>(?:&#x00028;|&#x0005B;|&#x0007B;|\(|\[)</mo>"
_SUBSCRIPT = r"(?:<mrow>(?:(?!</?mrow>).)*</mrow>|<m[ion]>[^<]*</m[ion]>)</m(?:sub|under)>"


def mathml(latex: str, *, block: bool) -> str:
    """Return the MathML of an equation.

    Raises:
        ValueError: If a command is unknown, because it would be printed as its name.
    """
    source = " ".join(latex.split())
    for pattern, words in _REWRITES:
        source = pattern.sub(words, source)
    result = convert(source, display="block" if block else "inline")
    unknown = re.search(r"<m[a-z]+[^>]*>(\\[A-Za-z]+)</m", result)
    if unknown:
        raise ValueError(f"{unknown[1]}: unknown command")
    result = _limits(result) if block else result
    return _space_names(_space_signs(_fence_norms(result)))


def apart(latex: str) -> list[str]:
    r"""Split a line of equations at its wide spaces (\quad, \qquad), so each can have a separate line."""
    pieces, depth = [""], 0
    for token in re.findall(r"\\[A-Za-z]+|\\.|[^\\]", latex, re.DOTALL):
        depth += {"{": 1, "}": -1, r"\left": 1, r"\right": -1}.get(token, 0)
        if depth == 0 and token in (r"\quad", r"\qquad"):
            pieces.append("")
        else:
            pieces[-1] += token
    return [piece for piece in pieces if piece.strip()]


def _fence_norms(text: str) -> str:
    """Give the bars of a norm the spacing of brackets: every other one opens."""
    forms = iter(["prefix", "postfix"] * text.count(_NORM))
    return re.sub(f"<mo[^>]*>{_NORM}</mo>", lambda _: f'<mo form="{next(forms)}" stretchy="false">{_NORM}</mo>', text)


def _space_signs(text: str) -> str:
    """Set a slash without spaces, and a minus after an opening bracket as a sign."""
    text = re.sub(r"<mo>(/|&#x0002F;)</mo>", r'<mo lspace="0" rspace="0">\1</mo>', text)
    return re.sub(rf"({_OPEN})<mo>(&#x02212;)</mo>", r'\1<mo form="prefix" lspace="0" rspace="0">\2</mo>', text)


def _limits(text: str) -> str:
    """Set the index of a minimum or maximum below it, as is usual in displayed equations."""
    for name in ("argmin", "argmax", "min", "max"):
        start = f"<msub><mo>{name}</mo>"
        while (at := text.find(start)) >= 0:
            end = _closing(text, at, "msub")
            inner = text[at + len("<msub>") : end]
            text = f"{text[:at]}<munder>{inner}</munder>{text[end + len('</msub>') :]}"
    return text


def _closing(text: str, start: int, tag: str) -> int:
    """Return the position of the end tag that closes the tag at `start`."""
    depth = 0
    for found in re.compile(f"<(/?){tag}>").finditer(text, start):
        depth += -1 if found[1] else 1
        if depth == 0:
            return found.start()
    raise ValueError(f"unbalanced <{tag}>")


def _space_names(text: str) -> str:
    """Set named functions such as log and softmax with thin spaces around, but none before a bracket."""

    def spaced(found: re.Match[str]) -> str:
        name = {"argmin": "arg min", "argmax": "arg max"}.get(found[1], found[1])
        applied = re.match(f"(?:{_SUBSCRIPT})?{_OPEN}", text[found.end() :])
        right = "0" if applied else "0.167em"
        return f'<mo form="prefix" lspace="0.167em" rspace="{right}">{name}</mo>'

    return _NAME.sub(spaced, text)


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Replace every marked equation of a rendered page."""

    def replace(found: re.Match[str]) -> str:
        block = found["block"] is not None
        latex = html.unescape(found["block"] if block else found["inline"])
        try:
            pieces = apart(latex) if block else [latex]
            result = "".join(mathml(piece, block=block) for piece in pieces)
        except Exception as error:  # the converter raises many kinds; the writer needs page and equation
            raise PluginError(f"{page.file.src_path}: the equation {latex!r} cannot be set: {error}") from error
        return f'<div class="equation">{result}</div>' if block else result

    return _MARKED.sub(replace, content)
