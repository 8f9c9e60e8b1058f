"""`kill -9` of a process during `save_state`, at thirty random moments: the newest complete checkpoint loads and equals what was saved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


def test_killed_at_thirty_random_moments(tmp_path: Path) -> None:
    script = Path(__file__).with_name("killed_saves.py")
    done = subprocess.run([sys.executable, str(script), str(tmp_path), "20"], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "newest complete saves" in done.stdout
