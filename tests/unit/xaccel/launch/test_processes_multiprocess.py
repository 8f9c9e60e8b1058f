"""Real children: statuses, and the end of all when one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xaccel.launch.processes import launch
from xaccel.launch.ranks import LaunchRequest

TWO = LaunchRequest(backend="torch", num_processes=2)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_all_fine(tmp_path: Path) -> None:
    code = f"import os; open(r'{tmp_path}/' + os.environ['RANK'], 'w').close()"
    assert launch(TWO, python(code)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_the_script_s_status_and_the_end_of_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    assert launch(TWO, python("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(60)")) == 3
    assert time.monotonic() - started < 20
    assert "process 1 of 2 ended with exit status 3" in capfd.readouterr().err


def test_a_child_that_swallows_sigterm_is_killed() -> None:
    code = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nif os.environ['RANK'] == '1': time.sleep(1); sys.exit(4)\ntime.sleep(60)"
    started = time.monotonic()
    assert launch(TWO, python(code)) == 4
    assert time.monotonic() - started < 20


def test_interrupting_the_launcher_ends_the_children(tmp_path: Path) -> None:
    child = f"import os, time; open(r'{tmp_path}/' + os.environ['RANK'] + '.' + str(os.getpid()), 'w').close(); time.sleep(60)"
    (tmp_path / "script.py").write_text(child)
    command = [sys.executable, "-m", "xaccel.cli", "launch", "--backend", "torch", "--num_processes", "2", str(tmp_path / "script.py")]
    with subprocess.Popen(command) as launcher:
        deadline = time.monotonic() + 30
        while len(list(tmp_path.glob("[01].*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(20) == 130
    for path in tmp_path.glob("[01].*"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.suffix[1:]), 0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--num_procs", "2", "x.py"], "num_procs"),
        (["--backend", "abacus", "x.py"], "abacus"),
        (["--backend", "torch", "--devices", "8", "x.py"], "--devices 8"),
        (["--mixed_precision", "fp64", "x.py"], "fp64"),
    ],
)
def test_misuse_is_status_2_and_names_it(arguments: list[str], named: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xaccel.cli", "launch", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_env_for_programs() -> None:
    import json

    done = subprocess.run([sys.executable, "-m", "xaccel.cli", "env", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["xaccel"] == "0.1.0"
