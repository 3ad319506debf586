"""The pages of studies say what came out first, then show it, and leave nothing kept aside."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT
from winnow.studies import STUDIES

MACHINE = {"gpu": None, "processor": "a processor", "cores": 2}
TEXT = "Of two claims one agrees.\n- That it helps: +1, agrees.\n- That it is fast: cannot be told.\n\nHow.\n\nMissing."


@pytest.fixture(scope="module")
def hooks() -> Iterator[tuple[ModuleType, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs/hooks"))
        yield importlib.import_module("studies"), importlib.import_module("measured")


def keep(path: Path, *, small: bool, text: str = TEXT, missing: dict[str, str] | None = None) -> None:
    """Keep a measurement as studies write it."""
    path.parent.mkdir(exist_ok=True)
    told = f"{path.parent.name}: {text}"
    runs = [{"machine": {**MACHINE, "gpu": "a GPU"}}]
    content = {"rows": [{"a": 1}, {"a": 2}], "settings": {"small": small}, "command": "winnow study mu", "runs": runs,
               "commit": "0123456789abcdef-dirty", "machine": MACHINE, "missing": missing or {}}  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(content))
    path.with_suffix(".md").write_text(f"# The title\n\n{told}\n\n| a |\n|---|\n| 1 |\n| 2 |\n")
    path.with_suffix(".svg").write_text("<svg/>")


def test_every_study_has_one_theme(hooks):
    studies, _ = hooks
    names = [name for group in studies.grouped().values() for name in group]
    assert sorted(names) == sorted(STUDIES)
    assert set(studies.ABOUT) == set(studies.grouped())
    listed: list[str] = []
    for entry in studies.nav():
        for pages in entry.values():
            listed += [pages] if isinstance(pages, str) else [path for one in pages for path in one.values()]
    assert listed == [f"studies/{name}.md" for name in names] == [place for place, _ in studies.pages()]


@pytest.mark.parametrize(
    ("text", "verdict", "rest"),
    [
        ("All in one.", "All in one.", ""),
        ("First.\n\nHow.\n\nMissing.", "First.", "How.\n\nMissing."),
        ("- one\n- two\n\nHow.", "- one\n\n- two", "How."),
        ("Lead:\n- one\n- two\n\nHow.", "Lead:\n\n- one\n\n- two", "How."),
        ("Lead:\n\n- one\n- two, 3 - 2\n\nHow:\n- this", "Lead:\n\n- one\n\n- two, 3 - 2", "How:\n\n- this"),
    ],
)
def test_the_verdict_is_the_first_paragraph_with_its_list(hooks, text, verdict, rest):
    assert hooks[1].parted(text) == (verdict, rest)


@pytest.mark.parametrize(
    ("line", "shows", "place"),
    [
        ("The share mu (Fig. 5.8).", "The share mu.", "Fig. 5.8"),
        ("How few? (new, section 6.3).", "How few?", "new, section 6.3"),
        ("Tokens (new).", "Tokens.", "new"),
        ("Poolings (Fig. 5.12b; needs a GPU).", "Poolings.", "Fig. 5.12b"),
        ("In the plane (t-SNE), and more (Fig. 3.3).", "In the plane (t-SNE), and more.", "Fig. 3.3"),
        ("Losses (needs the images, and a GPU).", "Losses (needs the images, and a GPU).", ""),
        ("Every loss: same seeds.", "Every loss: same seeds.", ""),
    ],
)
def test_a_first_line_says_where_it_is_in_the_documents(hooks, line, shows, place):
    assert hooks[0].placed(line) == (shows, place)


def test_a_page_has_the_fullest_first_and_the_verdict_before_the_figure(hooks, tmp_path, monkeypatch):
    studies, measured = hooks
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    keep(tmp_path / "small" / "mu", small=True)
    assert "still to be measured" in studies.page("mu")
    keep(tmp_path / "mu", small=False, missing={"GAP": "seed 2"})
    keep(tmp_path / "frozen" / "mu", small=False, text="All in one paragraph.")
    (tmp_path / "small" / "mu_images.png").write_bytes(b"")
    (tmp_path / "small" / "mu_other.png").write_bytes(b"")
    keep(tmp_path / "small" / "mu_other", small=True)  # another study, whose name begins alike
    page = studies.page("mu")
    order = ["# The title", "winnow study mu --full", "Cost: ", "{ #full }", "\n\n- That it helps", "](mu.svg)",
             "How.\n\nMissing.", '??? abstract "The table, 2 rows"', "    | 2 |", "{ .origin }",
             "{ #frozen }", "All in one", "](frozen/mu.svg)",
             "{ #small }", "](small/mu.svg)", "](small/mu_images.png)", "How."]  # fmt: skip
    places = []
    for piece in order:
        places.append(page.index(piece, places[-1] if places else 0))
    assert places == sorted(places)
    assert "still to be measured" not in page
    assert "mu_other" not in page
    assert "at commit `0123456789-dirty` on a processor, 2 cores, runs on a GPU." in page
    row = next(line for line in studies.overview().splitlines() if line.startswith("| [`mu`](mu.md) |"))
    assert "[full (in part)](mu.md#full)<br>[frozen network](mu.md#frozen)<br>[small](mu.md#small)" in row
    assert "Fig. 5.8" in row


def test_all_that_is_kept_of_studies_is_shown(hooks):
    studies, measured = hooks
    kept = {path.relative_to(ROOT / "results").as_posix() for name in STUDIES for folder in (".", "frozen", "small")
            for path in (ROOT / "results" / folder).glob(f"{name.replace('-', '_')}.svg")}  # fmt: skip
    text = dict(studies.pages())
    for place in kept:
        name = Path(place).stem.replace("_", "-")
        assert f"]({place})" in text[f"studies/{name}.md"], place
    assert {f"studies/{place}" for place in kept} <= dict(studies.pictures()).keys()
    for name in STUDIES:
        for one in measured.measured(name):
            assert one.verdict, one.path
            assert len(one.table.splitlines()) == len(one.content["rows"]) + 2, one.path
