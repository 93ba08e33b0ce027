"""Alias of `study.cluster.supervisor` for cluster files of earlier versions."""

from __future__ import annotations

import sys

from study.cluster.supervisor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
