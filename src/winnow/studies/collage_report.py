"""What the study of collages says: its table and its text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from winnow.studies.base import paragraphs
from winnow.studies.outcomes import Found, Runs, deviation, finished, percent, without_empty

Places = Mapping[tuple[str, str], Found]
"""(what the backbone was pretrained on, loss), then pooling, to the results of its runs."""

GAIN = 17
"""Points of MAP@R by which GSP is ahead of average pooling in the documents."""
NEAR = 5
"""Points by which a gain may differ from that and still agree with it."""
EXCEPT = {("C2", "NetVLAD 64x128"), ("C2", "NetVLAD 8x16")}
"""Loss and pooling that the documents have ahead of GSP."""


def table(found: Places, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each pooling with runs: MAP@R with each loss and backbone, its deviation, the runs behind it."""
    rows = []
    for pooling in next(iter(found.values())):
        row: dict[str, Any] = {"pooling": pooling}
        runs = 0
        for (seen, loss), by_name in found.items():
            values = percent(by_name[pooling])
            row[f"{loss}, {seen}"] = round(statistics.mean(values), 2) if values else None
            row[f"{loss}, {seen}: sd"] = round(statistics.stdev(values), 2) if len(values) > 1 else None
            runs += len(values)
        if runs:
            rows.append({**row, "runs": f"{runs} of {len(found) * len(seeds)}"})
    return without_empty(rows, *(rows[0] if rows else ()))


def told(
    found: Places,
    pretraining: Mapping[str, Mapping[str, Any] | None],
    seeds: Sequence[int],
    command: str,
    *,
    frozen: bool,
    made: bool,
) -> str:
    """Return the text.

    Args:
        found: The results.
        pretraining: What the backbones were pretrained on, to the record of it.
        seeds: That every run was asked for with.
        command: What trains the missing runs.
        frozen: Whether the backbone stayed as pretrained.
        made: Whether the images are made up, so that what the documents say of Cifar-100 does not bear on them.
    """
    asked = sum(len(by_name) for by_name in found.values()) * len(seeds)
    trained = sum(len(runs) for by_name in found.values() for runs in by_name.values())
    if made:
        claim = (
            f"The documents report a gain of about {GAIN} points of GSP over average pooling on Cifar-100, which this "
            "size is too small to check: it shows that all of it runs."
        )
    else:
        claim = (
            f"The documents report a gain of about {GAIN} points of GSP over average pooling, and no pooling ahead of "
            "it but NetVLAD with C2; their numbers are in figures only, and their backbone had seen all classes. Here, "
            "in points of MAP@R from average pooling:"
        )
    standing = [f"- {one}" for (seen, loss), by_name in found.items()
                for one in _standing(seen, loss, by_name, beside=not made)]  # fmt: skip
    way = "A frozen ResNet-20" if frozen else "ResNet-20, all of it trained"
    made_of = [
        f"Collages of 2 x 2 images of {'made-up classes' if made else 'Cifar-100'}, of which one gives the label, a "
        "super-class, and three are background; the classes of both are disjoint between training, validation and test "
        f"(2/1/2 of each super-class). {way}, 128 numbers for an image where the name says no other, Adam 1e-3, halved "
        "after 5 validations without a gain, 16 x 4 images in a batch, no augmentation, the best weights by "
        "validation. GSP has the documents' settings (mu = 0.2, eps = 10, 64 prototypes, ZSR 0.5), the others those of "
        "their papers; C2's margins are those of the embedded set's study. Distilled is average pooling on the "
        "foreground images alone.",
        *_short(found), *_overruled(found),
    ]  # fmt: skip
    return paragraphs(
        "\n".join([claim, *([""] if standing else []), *standing]),
        " ".join(made_of), " ".join(_backbones(pretraining)), finished(trained, asked, command),
    )  # fmt: skip


def _short(found: Places) -> list[str]:
    """Say how long runs were, and which of them training never made better."""
    runs = [(name, f"{loss}, {seen}", run)
            for (seen, loss), by_name in found.items() for name, of in by_name.items() for run in of]  # fmt: skip
    if not runs:
        return []
    told = [f"Runs took at most {max(run['steps'] for *_, run in runs):,} steps (a pass over the collages takes 300)."]
    idle = sorted({f"{name} ({place})" for name, place, run in runs if run["best_step"] == 0})
    if idle:
        told.append(f"Training made nothing better, by validation, of {'; '.join(idle)}.")
    return told


def _overruled(found: Places) -> list[str]:
    """Say with which losses ZSR has undone the training."""
    losses = [
        loss for (_, loss), by_name in found.items()
        if by_name.get("GSP") and by_name.get("GSP + ZSR")
        and statistics.mean(percent(by_name["GSP + ZSR"])) < statistics.mean(percent(by_name["GSP"])) / 2
    ]  # fmt: skip
    if not losses:
        return []
    return [
        f"Beside GSP and with {' and '.join(dict.fromkeys(losses))} the documents' weight of ZSR overrules the loss, "
        "as it does with so few classes, and attributes become alike (see the page on ZSR)."
    ]


def _backbones(pretraining: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Say what each backbone had seen, and how well it names what it had not."""
    told = [
        f"{record['images']:,} training images of {record['classes']} classes ({seen}; "
        f"{100 * record['accuracy']:.1f} % of their {record['held_out']:,} test images named rightly)"
        for seen, record in pretraining.items()
        if record is not None
    ]
    if not told:
        return []
    return [
        f"Backbones were pretrained by classification on {' or '.join(told)}. Collages are made of training and test "
        "images alike: the first backbone has seen no image of a validation or test class, the second has "
        "seen the training images in them, five in six, with their classes."
    ]


def _standing(seen: str, loss: str, by_name: Found, *, beside: bool) -> list[str]:
    """Say how GSP stands with one loss on one backbone, beside what the documents say if that is wanted."""
    means = {name: statistics.mean(percent(runs)) for name, runs in by_name.items() if runs}
    if not {"GAP", "GSP"} <= set(means):
        return []
    bounds = [name for name in means if name.startswith("distilled")]
    rivals = [name for name in by_name if name != "GAP" and not any(own in name for own in ("GSP", "ZSR", "distilled"))]
    trained = [name for name in rivals if name in means]
    ahead = sorted((name for name in trained if means[name] > means["GSP"]), key=means.__getitem__, reverse=True)
    gain, spread = means["GSP"] - means["GAP"], deviation(by_name)
    zsr = f", with ZSR {means['GSP + ZSR'] - means['GAP']:+.1f}" if "GSP + ZSR" in means else ""
    bound = "".join(
        f"; the foreground alone{_untrained(by_name[name])} {means[name] - means['GAP']:+.1f}" for name in bounds
    )
    unexpected = [name for name in ahead if (loss, name) not in EXCEPT and means[name] > means["GSP"] + spread]
    size = _beside(abs(gain - GAIN) <= NEAR) if beside else ""
    order = (
        "" if not beside
        else _beside(not unexpected) if unexpected or len(trained) == len(rivals)
        else " (others are missing, so that it cannot be told)"
    )  # fmt: skip
    listed = f"ahead of GSP {'are' if len(ahead) > 1 else 'is'} {', '.join(ahead)}" if ahead else "none is ahead of GSP"
    others = (
        f"of {len(trained)} other poolings {listed}{order}" if trained
        else "no other pooling is in" if rivals else "other poolings are left to the full size"
    )  # fmt: skip
    seeds = f"seeds deviate by up to {spread:.1f}" if spread else "one seed"
    return [f"{loss}, {seen} ({seeds}): GSP {gain:+.1f}{size}{zsr}{bound}; {others}."]


def _untrained(runs: Runs) -> str:
    """Say where a bound is that of the pretrained network, which training made no better."""
    return ", as pretrained," if all(run["best_step"] == 0 for run in runs) else ""


def _beside(agrees: bool) -> str:
    return f" ({'as' if agrees else 'unlike what'} the documents report)"
