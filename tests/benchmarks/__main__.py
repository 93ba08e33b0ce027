"""Program of `make bench`: runs all benchmarks one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS_DIR = Path(__file__).parent


def main() -> None:
    """Run each bench_*.py with the given arguments in a new process."""
    failed = []
    for path in sorted(BENCHMARKS_DIR.glob("bench_*.py")):
        print(f"\n== {path.stem}", flush=True)
        module = f"tests.benchmarks.{path.stem}"
        if subprocess.run([sys.executable, "-m", module, *sys.argv[1:]]).returncode:
            failed.append(path.stem)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
