"""`make bench`: every benchmark, one after the other on otherwise quiet cores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Run each bench_*.py in a process of its own; arguments are passed on."""
    failed = []
    for path in sorted(HERE.glob("bench_*.py")):
        print(f"\n== {path.stem}", flush=True)
        module = f"tests.benchmarks.{path.stem}"
        if subprocess.run([sys.executable, "-m", module, *sys.argv[1:]]).returncode:
            failed.append(path.stem)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
