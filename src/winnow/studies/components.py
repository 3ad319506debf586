"""The two components, GSP and ZSR, alone and together (Table 5.3)."""

from __future__ import annotations

from collections.abc import Mapping

from winnow.studies.base import Findings, Task, with_data, with_runs
from winnow.studies.methods import Comparison, Method
from winnow.studies.outcomes import deviation, findings, scores, verdict
from winnow.studies.sweeps import compare, gsp, losses, where

THESIS = {"GAP": 20.58, "GSP": 20.85, "ZSR alone (mu = 1)": 21.08, "GSP + ZSR": 21.52}  # CUB, 128-D MAP@R
ZSR = 0.1


def comparison(small: bool) -> Comparison:
    """Return C2 with neither, either and both; GSP as chosen for the embedded set, on CUB as in the documents."""
    own = losses(small)["C2"]
    mu, eps = (0.05, 20) if small else (0.3, 5)
    words = {
        "GAP": ["pooling=gap"],
        "GSP": gsp(mu, eps),
        "ZSR alone (mu = 1)": gsp(1, eps, zsr=ZSR),
        "GSP + ZSR": gsp(mu, eps, zsr=ZSR),
    }
    return compare([Method(name, [*each, *own], facts={"thesis, CUB": THESIS[name]}) for name, each in words.items()],
                   small, seeds=3)  # fmt: skip


@with_data(small=False, full=True)
@with_runs
def study(task: Task) -> Findings:
    """C2 with average pooling, with GSP, with the zero-shot regularisation alone, and with both (Table 5.3).

    Cost: 1 minute (12 runs); in full 12 runs on CUB-200-2011 and a GPU.
    """
    compared = comparison(task.small)
    found = compared.train(task)
    figure = compared.figure(found, "C2 with each component")
    text = f"{where(task.small)}, C2. {told(scores(found), deviation(found))}"
    rows = compared.rows(found)
    return findings(task, "components", "GSP and ZSR, alone and together", text, compared, found, figure, rows)


def told(reached: Mapping[str, float], deviation: float) -> str:
    """Check: each component improves the baseline, and the two together are best."""
    if not set(THESIS) <= set(reached):
        return "Runs are missing, so that the claim cannot be checked yet."
    baseline, *alone, both = THESIS
    gain = {name: reached[name] - reached[baseline] for name in (*alone, both)}
    lead = reached[both] - max(reached[name] for name in (baseline, *alone))
    improved = ", ".join(f"of {name} {verdict(gain[name], deviation)}" for name in alone)
    return (
        "The documents say that both components improve the baseline and that they are best together. Points of MAP@R "
        f"from {baseline}'s {reached[baseline]:.2f}: "
        f"{', '.join(f'{name} {points:+.2f}' for name, points in gain.items())}. The gain {improved}; that both "
        f"together are ahead of all others {verdict(lead, deviation)} ({lead:+.2f})."
    )
