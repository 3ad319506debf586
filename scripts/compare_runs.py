"""Compare finished runs of `winnow train` in one table, paired by seed.

    python scripts/compare_runs.py --out results/NAME "GAP=runs/gap-*" "GSP + ZSR=runs/gsp-*"

Writes NAME.md (table), NAME.json (command, commit, config, machine, and metrics of each run), and NAME.svg (curves).
The first method is the baseline of the differences.
"""

from __future__ import annotations

import argparse
import glob
import json
from pathlib import Path

from winnow.report import Comparison, Method, MethodRun, evidence, markdown_table, save, training_curves


def read_runs(pattern: str) -> list[tuple[dict, list[dict]]]:
    runs = []
    for folder in sorted(map(Path, glob.glob(pattern))):
        result = json.loads((folder / "result.json").read_text())
        history = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        runs.append((result, history))
    if not runs:
        raise SystemExit(f"no finished run matches {pattern}")
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="+", metavar="NAME=PATTERN")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--title", default="Test classes")
    parser.add_argument("--note", default="", help="sentence about the data or the machine")
    words = parser.parse_args()
    methods, records = [], []
    for word in words.methods:
        name, _, pattern = word.partition("=")
        runs = []
        for result, history in read_runs(pattern):
            seed = result["config"]["seed"]
            runs.append(MethodRun(seed, result["metrics"]["test"], history, result["seconds"]["training"]))
            records.append({"method": name, "seed": seed, **result})
        methods.append(Method(name, "", runs))
    comparison = Comparison(title=words.title, summary="", methods=methods)
    first = records[0]
    lines = [f"# {words.title}", "", markdown_table(comparison), ""]
    lines.append(evidence(comparison))
    lines += [
        "",
        "| method | seed | MAP@R | P@1 | P@R | best step | steps | training, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        test = record["metrics"]["test"]
        cells = " | ".join(f"{100 * test[name]:.2f}" for name in ("MAP@R", "P@1", "P@R"))
        lines.append(
            f"| {record['method']} | {record['seed']} | {cells} | {record['best_step']} | {record['steps']} "
            f"| {record['seconds']['training']:.0f} |"
        )
    lines += [
        "",
        f"Pretrained backbone, GAP, no training: MAP@R {100 * first['untrained']['test']['MAP@R']:.2f}.",
    ]
    lines += ["", f"Commands, configs and machine: {words.out.name}.json. Commit {first['commit']}."]
    lines += ["", words.note] if words.note else []
    words.out.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{words.out}.md").write_text("\n".join(lines) + "\n")
    Path(f"{words.out}.json").write_text(json.dumps({"note": words.note, "runs": records}, indent=1) + "\n")
    save(training_curves({m.name: [run.history for run in m.runs] for m in methods}), Path(f"{words.out}.svg"))
    print(Path(f"{words.out}.md").read_text())


if __name__ == "__main__":
    main()
