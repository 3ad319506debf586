"""Write the golden records in `tests/golden`, or compare them with this code bit by bit.

    PYTHONPATH=src python scripts/golden.py            # write: only at the version whose numbers are to be kept
    PYTHONPATH=src python scripts/golden.py --exact    # compare; exit status 1 where anything differs

`tests/golden/test_golden.py` compares within bounds that hold on other machines; `--exact` is for the machine that
wrote the records.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.golden import records  # noqa: E402


def origin() -> dict[str, object]:
    """Return the provenance of the records, without paths and names of machines."""
    import numpy
    import torch

    import winnow

    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    dirty = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True, check=True).stdout
    if dirty:
        raise SystemExit("src has changes that are not committed: Commit them, because the records name their commit")
    return {
        "command": "python scripts/golden.py", "commit": commit, "winnow": winnow.__version__,
        "python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__,
        "system": platform.system(), "machine": platform.machine(), "processor": records.processor(),
        "threads": 1,
    }  # fmt: skip


def main() -> int:
    """Write or compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--exact", action="store_true", help="compare bit by bit and write nothing")
    parser.add_argument("--keep-files", action="store_true", help="leave tests/golden/files as they are")
    asked = parser.parse_args()
    if asked.exact:
        differences = list(records.differences(exact=True))
        print("\n".join(differences) or "equal")
        return bool(differences)
    with TemporaryDirectory() as folder:
        records.write(origin(), Path(folder), files=not asked.keep_files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
