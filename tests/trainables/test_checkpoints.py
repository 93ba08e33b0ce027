"""A checkpoint is whole or not there, and a disk that does not take it says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_full_disk_is_an_os_error_for_large_tensors_too(tmp_path: Path) -> None:
    """torch's own writer says RuntimeError, which would cost the trial its life."""
    code = (
        "import resource, sys, torch\n"
        "from trainables.checkpoints import save_checkpoint\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        "try:\n"
        "    save_checkpoint(sys.argv[1], 't', {'weights': torch.zeros(2**21)})\n"
        "except OSError as error:\n"
        "    print('OSError', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("OSError"), done.stdout + done.stderr
    assert not list(tmp_path.iterdir()), "no half-written file is left"
