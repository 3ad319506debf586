"""Recorded results of studies, for tests that evaluate their claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from winnow.report.claims import Verdict
from winnow.studies import Study
from winnow.studies.scores import check_claims

RESULTS = Path(__file__).resolve().parents[2] / "results"


def read_recorded(study: Study, folder: str = "") -> dict[str, Any]:
    """Return the content of a recorded result."""
    content: dict[str, Any] = json.loads((RESULTS / folder / f"{study.stem}.json").read_text(encoding="utf-8"))
    return content


def recorded_claims(study: Study, folder: str = "") -> list[Verdict]:
    """Return the verdicts on a recorded result, evaluated again from its rows and runs; the file has the same."""
    content = read_recorded(study, folder)
    scale = study.scales["quick" if content["settings"]["small"] else "full"]
    found = [one.verdict for one in check_claims(study.claims, study.restore(content), scale, study.metric)]
    assert found == [Verdict(one["verdict"]) for one in content.get("claims", [])]
    return found
