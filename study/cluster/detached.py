"""Alias of `study.cluster.head_process`: the module name that clients of every version use."""

from __future__ import annotations

import sys

from study.cluster.head_process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
