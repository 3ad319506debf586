"""All blocks of the documentation run, page by page, in an empty folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.docs.blocks import PAGES, blocks, name
from tests.docs.reader import Belongings, Reader
from winnow.data.datasets import DATASETS
from winnow.studies import STUDIES
from winnow.training.config import REGISTRIES

RUN = ("python", "console", "yaml", "diff")
NEVER_RUN = ("text", "bibtex")  # folder layouts, file contents, citations
MOST_NOT_RUN = 3


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language in RUN for b in blocks(page))], ids=name)
def test_a_page_runs(page: Path, tmp_path: Path, belongings: Belongings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("WINNOW_CACHE", str(tmp_path / "cache"))
    for registry in REGISTRIES.values():  # a page may add components and datasets
        monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setattr(DATASETS, "_datasets", dict(DATASETS._datasets))
    reader = Reader(belongings)
    with mock.patch.dict(STUDIES):  # restores it: a page may add studies
        for block in blocks(page):
            if block.language in RUN and block.reason is None:
                reader.follow(block)
    own = [key for key, module in sys.modules.items() if is_below(getattr(module, "__file__", None), tmp_path)]
    for key in own:
        del sys.modules[key]


def is_below(path: str | None, folder: Path) -> bool:
    return path is not None and Path(path).is_relative_to(folder)


def test_blocks_have_known_languages() -> None:
    assert {block.language for page in PAGES for block in blocks(page)} <= {*RUN, *NEVER_RUN}
    for page in PAGES:  # an unknown kind of fence would be skipped too
        fences = page.read_text().count("```") // 2
        assert len(blocks(page)) == fences - page.read_text().count("``` {"), page


def test_few_blocks_are_skipped_and_each_has_a_reason() -> None:
    skipped = [block for page in PAGES for block in blocks(page) if block.reason is not None]
    assert len(skipped) <= MOST_NOT_RUN, [f"{name(block.page)}:{block.line}" for block in skipped]
    comments = sum(len(re.findall("^ *<!-- not run:", page.read_text(), re.MULTILINE)) for page in PAGES)
    assert comments == len(skipped), "a comment with a reason precedes no block"
