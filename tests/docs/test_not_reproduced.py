"""The page of claims that were not reproduced is complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/concepts/not_reproduced.md").read_text(encoding="utf-8")
FILES = sorted(
    file
    for folder in ("", "short", "frozen", "small")
    for file in (ROOT / "results" / folder).glob("*.json")
    if '"claims"' in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_each_study_with_such_a_claim_is_listed(file: Path) -> None:
    claims = json.loads(file.read_text(encoding="utf-8")).get("claims") or []
    if any("Not reproduced" in json.dumps(claim, ensure_ascii=False) for claim in claims):
        assert f"(../studies/{file.stem.replace('_', '-')}.md)" in PAGE
