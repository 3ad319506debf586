"""Pages of studies show verdicts first, then the figure, the table, and where the numbers come from."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from tests.docs.blocks import ROOT
from winnow.studies import STUDIES

MACHINE = {"gpu": None, "processor": "a processor", "cores": 2}
CLAIM = {"text": "It helps", "source": "[Thesis]", "ours": "+1", "n": 1, "verdict": "Incomplete"}


@pytest.fixture(scope="module")
def hooks() -> Iterator[tuple[ModuleType, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs/hooks"))
        yield importlib.import_module("studies"), importlib.import_module("published")


def save(path: Path, *, small: bool, **values: object) -> None:
    """Write a result file and its figure."""
    path.parent.mkdir(exist_ok=True)
    content = {
        "name": path.stem, "title": "The title", "setting": f"Setting of {path.parent.name}.", "claims": [CLAIM],
        "rows": [{"a": 1}, {"a": 2}], "settings": {"small": small}, "command": "winnow study mu", "versions": {},
        "runs": [{"machine": {**MACHINE, "gpu": "a GPU"}}], "commit": "0123456789abcdef-dirty", "machine": MACHINE,
        **values,
    }  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(content))
    path.with_suffix(".svg").write_text('<svg width="144pt"/>')


def test_every_study_is_in_one_group_of_the_navigation(hooks):
    studies, _ = hooks
    names = [study.name for group in studies.grouped().values() for study in group]
    assert sorted(names) == sorted(STUDIES)
    listed = [path for entry in studies.nav() for pages in entry.values() for one in pages for path in one.values()]
    assert listed == [f"studies/{name}.md" for name in names]
    assert sorted(listed) == sorted(path for path, _ in studies.pages())


def test_a_page_shows_the_largest_size_first_and_claims_before_the_figure(hooks, tmp_path, monkeypatch):
    studies, published = hooks
    results = tmp_path / "results"
    results.mkdir()
    for module in (studies, published):
        monkeypatch.setattr(module, "RESULTS", results)
    monkeypatch.setattr(studies, "NOTES", tmp_path)
    (tmp_path / "mu.md").write_text("The paragraph.")
    save(results / "small" / "mu", small=True)
    save(results / "mu", small=False, missing={"GAP": [2]}, todo="2 of 3 runs finished.")
    save(results / "frozen" / "mu", small=False)
    Image.new("L", (288, 9)).save(results / "small" / "mu_images.png", dpi=(144, 144))
    (results / "small" / "mu_other.png").write_bytes(b"")
    save(results / "small" / "mu_other", small=True)  # another study with a longer name
    page = studies.page(STUDIES["mu"])
    order = [
        f"# {STUDIES['mu'].title}", "Fig. 5.8", "The paragraph.", "{ #full }", "Setting of results.", "| It helps |",
        "](mu.svg)", '??? abstract "Table, 2 rows"', "    | 2 |", "2 of 3 runs finished.", "{ .origin }", "{ #frozen }",
        "](frozen/mu.svg)", "{ #small }", "](small/mu.svg)", "](small/mu_images.png)", "--width: 192px",
        "winnow study mu --full",
    ]  # fmt: skip
    positions = []
    for piece in order:
        positions.append(page.index(piece, positions[-1] if positions else 0))
    assert "mu_other" not in page
    assert "at commit `0123456789-dirty` on a processor, 2 cores, runs on a GPU." in page
    row = next(line for line in studies.overview().splitlines() if "](mu.md) |" in line)
    assert "3 Incomplete" in row
    assert [row.index(f"mu.md#{kind}") for kind in ("full", "frozen", "small")] == sorted(
        row.index(f"mu.md#{kind}") for kind in ("full", "frozen", "small")
    )
    assert not published.published("mu")[0].is_complete


def test_every_published_result_of_a_study_is_shown(hooks):
    studies, published = hooks
    text = dict(studies.pages())
    for name, study in STUDIES.items():
        for one in published.published(name):
            assert f"{{ #{one.kind} }}" in text[f"studies/{study.name}.md"], one.path
    figures = {path.relative_to(ROOT / "results").as_posix() for name in STUDIES for folder in (".", "frozen", "small")
               for path in (ROOT / "results" / folder).glob(f"{name.replace('-', '_')}.svg")}  # fmt: skip
    for path in figures:
        assert f"]({path})" in text[f"studies/{Path(path).stem.replace('_', '-')}.md"], path
    assert {f"studies/{path}" for path in figures} <= dict(studies.pictures()).keys()


def test_the_claims_table_lists_each_decided_claim_at_its_largest_size(hooks):
    studies, published = hooks
    decided = {}
    for name in STUDIES:
        for one in published.published(name):
            for claim in one.report.claims:
                if claim.verdict not in ("Incomplete", "Not applicable"):
                    decided.setdefault((name, claim.text), (one.kind, claim.verdict))
    verdict, found = "", []
    for line in studies.claims().splitlines():
        if fold := re.match(r'\?\?\? abstract "([^:]+): (\d+) claims?"', line):
            verdict = fold[1]
            assert int(fold[2]) == sum(one == verdict for _, one in decided.values())
        elif line.startswith("    | ") and not line.startswith("    | claim |"):
            found.append((verdict, line))
    assert len(found) == len(decided)
    for (name, _), (kind, verdict) in decided.items():
        assert any(one == verdict and f"(studies/{name}.md#{kind})" in line for one, line in found)
