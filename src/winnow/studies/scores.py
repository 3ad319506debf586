"""Scores of a study's rows, and the evaluation of claims on them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from winnow.report.claims import CheckedClaim, Estimate, Verdict, estimate, exact, format_points, verdict
from winnow.studies.spec import Claim, Effects, Evidence, Measurement, Row, Scale, Variant


class MissingScoreError(LookupError):
    """A claim reads a row that has no run."""


class Scores:
    """Values of a table by the names of its rows; rows that were read are remembered in `used`.

    Args:
        rows: Rows, not rounded.
        metric: Column that `scores[name]` reads.
        variants: Variants of a grid, for sweeps.
    """

    def __init__(self, rows: Sequence[Row], metric: str = "MAP@R", variants: Sequence[Variant] = ()) -> None:
        self._rows = {str(next(iter(row.values()))): row for row in rows}
        self._metric = metric
        self._variants = variants
        self.used: set[str] = set()
        self._lacks_values = False  # a cell that was read is empty

    def __getitem__(self, name: str) -> float:
        return self.cell(name, self._metric)

    def __contains__(self, name: str) -> bool:
        return self._rows.get(name, {}).get(self._metric) is not None

    def has_all(self) -> bool:
        """Return whether every row that was read exists, and has values."""
        return self.used <= set(self._rows) and not self._lacks_values

    def require(self, condition: bool, reason: str) -> None:
        """Make a claim incomplete unless a condition holds.

        Raises:
            MissingScoreError: If it does not hold.
        """
        if not condition:
            self._lacks_values = True
            raise MissingScoreError(reason)

    def cell(self, row: str, column: str) -> float:
        """Return the value of a row in a column.

        Raises:
            MissingScoreError: If it is missing.
        """
        self.used.add(row)
        cells = self._rows.get(row, {})
        value = cells.get(column)
        if value is None:
            self._lacks_values |= column in cells
            raise MissingScoreError(f"{row}: no value in column {column}.")
        return float(value)

    def group(self, group: str) -> dict[str, float]:
        """Return the scores of a group's finished variants by name."""
        return {one.name: self[one.name] for one in self._members(group)}

    def sweep(self, group: str) -> dict[float, float]:
        """Return the scores of a group's finished variants by their place x."""
        return {one.x: self[one.name] for one in self._members(group) if one.x is not None}

    def grid(self, group: str) -> dict[tuple[float, float], float]:
        """Return the scores of a group's finished variants by their place (x, y)."""
        members = [one for one in self._members(group) if one.x is not None and one.y is not None]
        return {(one.x, one.y): self[one.name] for one in members if one.x is not None and one.y is not None}

    def best(self, group: str) -> float:
        """Return the highest score of a group."""
        return max(self.group(group).values())

    def effects(self, group: str, factors: Mapping[str, str]) -> dict[str, float]:
        """Return the main effects of factors, given with their config keys, over the variants of a group.

        Raises:
            MissingScoreError: If a variant of the design is not finished.
        """
        return main_effects([one for one in self._variants if one.group == group], self.group(group), factors)

    def _members(self, group: str) -> list[Variant]:
        members = [one for one in self._variants if one.group == group]
        self.used.update(one.name for one in members)  # a claim about a group is incomplete without one of them
        found = [one for one in members if one.name in self]
        self._lacks_values |= any(one.name in self._rows for one in members if one not in found)
        if not found:
            raise MissingScoreError(f"{group}: no variant of this group is finished.")
        return found


def check_claims(
    claims: Sequence[Claim], measured: Measurement, scale: Scale, metric: str = "MAP@R"
) -> list[CheckedClaim]:
    """Check claims; those of the other size are left out."""
    checked: dict[int, CheckedClaim] = {}
    for number, claim in enumerate(claims):
        if claim.scale in (None, scale.name):
            given = checked[claim.given].verdict if claim.given in checked else None
            checked[number] = check_claim(claim, measured, scale, metric, given)
    return list(checked.values())


def check_claim(
    claim: Claim, measured: Measurement, scale: Scale, metric: str = "MAP@R", given: Verdict | None = None
) -> CheckedClaim:
    """Check a claim: the margin is that of the means, its interval comes from the margins of single seeds.

    Args:
        claim: What to check.
        measured: Rows of the means and of every seed.
        scale: Has the seeds; without seeds nothing is random, and the margin is exact.
        metric: Column of the scores.
        given: Verdict of the claim that must be reproduced first.
    """
    means = Scores(measured.exact or measured.rows, metric, measured.variants)
    try:
        evidence: Evidence | None = claim.check(means)
    except (LookupError, ValueError):
        if means.has_all() and is_complete(means.used, measured, scale):
            raise
        evidence = None
    complete = means.has_all() and is_complete(means.used, measured, scale)
    if evidence is None:
        return CheckedClaim(claim.text, claim.source, "runs are missing", None, Verdict.INCOMPLETE)
    if evidence.interval is not None:
        found = evidence.interval
    elif scale.seeds:
        found = _interval(evidence.margin, _margins(claim, measured, metric))
    else:
        found = exact(evidence.margin)
    judged = verdict(found, size=claim.size, equal=claim.equal, complete=complete)
    if given is Verdict.INCOMPLETE:
        judged = Verdict.INCOMPLETE
    elif given not in (None, Verdict.REPRODUCED):
        judged = Verdict.NOT_APPLICABLE
    margin = f"{format_points(evidence.margin)} {evidence.unit}"
    ours = f"{evidence.ours}: {margin}" if evidence.ours else margin
    return CheckedClaim(claim.text, claim.source, ours, found, judged)


def is_complete(used: set[str], measured: Measurement, scale: Scale) -> bool:
    """Return whether rows have a value, and where seeds are random, one of every seed."""
    if any(name in measured.missing for name in used):
        return False
    tables = (measured.exact or measured.rows, *measured.by_seed.values())
    names = [{str(next(iter(row.values()))) for row in rows} for rows in tables]
    return all(used <= each for each in names) and set(scale.seeds) <= (set(measured.by_seed) or set(scale.seeds))


def _margins(claim: Claim, measured: Measurement, metric: str) -> list[float]:
    """Return the margins of the seeds that have all runs of a claim."""
    margins = []
    for rows in measured.by_seed.values():
        scores = Scores(rows, metric, measured.variants)
        try:
            margin = claim.check(scores).margin
        except (LookupError, ValueError):
            if scores.has_all():
                raise
        else:
            if scores.has_all():
                margins.append(margin)
    return margins


def _interval(margin: float, margins: Sequence[float]) -> Estimate:
    """Return the margin of the means with the half-width of Student's interval of single margins."""
    if not margins:
        return Estimate(margin, n=0)
    found = estimate(margins)
    if found.high is None:
        return replace(found, mean=margin)
    half = found.high - found.mean
    return replace(found, mean=margin, low=margin - half, high=margin + half)


def main_effects(
    variants: Sequence[Variant], values: Mapping[str, float], factors: Mapping[str, str]
) -> dict[str, float]:
    """Return the mean at the high level of each factor minus the mean at its low level.

    Args:
        variants: Variants of the design; those that set not all factors, such as a baseline, are left out.
        values: Name of a variant to its score.
        factors: Factor to config key.

    Raises:
        MissingScoreError: If a variant of the design has no score.
    """
    levels = {one.name: one.settings.flat() for one in variants}
    levels = {name: flat for name, flat in levels.items() if set(factors.values()) <= set(flat)}
    if not levels or not set(levels) <= set(values):
        raise MissingScoreError("variants: the design has variants without a score.")
    effects = {}
    for factor, key in factors.items():
        low, high = min(flat[key] for flat in levels.values()), max(flat[key] for flat in levels.values())
        sides = [[values[name] for name, flat in levels.items() if flat[key] == level] for level in (low, high)]
        effects[factor] = statistics.fmean(sides[1]) - statistics.fmean(sides[0])
    return effects


def effect_rows(figure: Effects, variants: Sequence[Variant], scores: Scores, metric: str) -> list[dict[str, object]]:
    """Return a row for each main effect of each group: ours if its runs are finished, and the published one."""
    rows: list[dict[str, object]] = []
    for group in dict.fromkeys(one.group for one in variants):
        members = [one for one in variants if one.group == group]
        found = {one.name: scores[one.name] for one in members if one.name in scores}
        try:
            ours = main_effects(members, found, figure.factors)
        except MissingScoreError:
            ours = {}
        published = {one.name: one.published[figure.published] for one in members if figure.published in one.published}
        for factor, theirs in main_effects(members, published, figure.factors).items():
            effect = round(ours[factor], 2) if ours else None
            rows.append({"method": f"effect of {factor}, {group}", metric: effect, figure.published: round(theirs, 2)})
    return rows


BY_SEED = "by seed"
"""Key of result files: rows of every seed, not rounded, of studies whose runs do not hold them."""


def seed_means(by_seed: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return the mean of every row over the seeds that have it.

    The first column names rows; the others are numbers.
    """
    own: dict[str, list[Row]] = {}
    for row in (row for rows in by_seed.values() for row in rows):
        own.setdefault(str(next(iter(row.values()))), []).append(row)
    return [
        {key: value if value == name else statistics.fmean(one[key] for one in rows) for key, value in rows[0].items()}
        for name, rows in own.items()
    ]


def mean(values: Mapping[Any, float] | Sequence[float]) -> float:
    """Return the mean of scores.

    Raises:
        StatisticsError: If there are none.
    """
    return statistics.fmean(values.values() if isinstance(values, Mapping) else values)


def mean_rows(tables: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the means of numbers over the tables of seeds; None where a row has no number.

    Tables have named rows in the same order; a row that one of them lacks is left out.
    """
    by_name = [{next(iter(row.values())): row for row in rows} for rows in tables]
    common = [name for name in by_name[0] if all(name in rows for rows in by_name)] if by_name else []

    def mean_of(values: Sequence[Any]) -> Any:
        return statistics.fmean(values) if all(isinstance(value, int | float) for value in values) else None

    found: list[Row] = []
    for name in common:
        first, *others = [rows[name] for rows in by_name]
        (named, _), *numbers = first.items()
        cells = {key: mean_of([value, *(row.get(key) for row in others)]) for key, value in numbers}
        found.append({named: name} | cells)
    return found
