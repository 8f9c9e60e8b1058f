"""SIGKILL during a save, at 30 random moments: the newest complete checkpoint loads and equals what was saved; the old ones stay."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from xaccel.checkpoint.layout import open_checkpoint
from xaccel.checkpoint.retention import newest_checkpoint, numbered_checkpoints

SAVER = '''
"""Two processes that save one checkpoint after the other until they are killed. The values follow from the iteration."""
import os, socket, sys
from multiprocessing.connection import Connection
import numpy as np
from xaccel.checkpoint.array_state import ArrayState
from xaccel.checkpoint.manifest import Manifest
from xaccel.checkpoint.plan import Section
from xaccel.checkpoint.retention import apply_limit, checkpoint_name, next_iteration
from xaccel.checkpoint.writer import write_checkpoint

class PipeCoordinator:
    """Rank 0 and rank 1 over two pipes; a dead peer ends this process."""
    num_processes = 2
    def __init__(self, index, connection):
        self.process_index, self.connection = index, connection
    def gather_objects(self, value):
        self.connection.send(value)
        other = self.connection.recv()
        return [value, other] if self.process_index == 0 else [other, value]
    def barrier(self, name="barrier"):
        self.gather_objects(None)
    def broadcast_objects(self, values, from_process):
        return self.gather_objects(values)[from_process]

def save_forever(index, connection, folder):
    run = PipeCoordinator(index, connection)
    while True:
        number = run.broadcast_objects([next_iteration(folder)], 0)[0]
        weight = np.full((64, 512), number, np.float32) + np.arange(512, dtype=np.float32)
        half = ((32 * index, 32 * index + 32), (0, 512))
        sections = [Section("model", ArrayState({"w": weight, "n": np.array(number)}, owned={"w": (half,), "n": ((),) if index == 0 else ()})),
                    Section(f"process-{index:05d}", ArrayState({"rng": np.full(1000, number * 10 + index)}), scope="process")]
        write_checkpoint(os.path.join(folder, checkpoint_name(number)), sections, Manifest(iteration=number), run)
        # Over an existing one too: the swap is a moment of its own.
        write_checkpoint(os.path.join(folder, "latest"), sections, Manifest(iteration=number), run)
        if index == 0:
            apply_limit(folder, 3)
        run.barrier()

def rank(index, ends, folder):
    ends[1 - index].close()
    try:
        save_forever(index, Connection(ends[index].detach()), folder)
    except (EOFError, ConnectionError):
        os._exit(3)  # the other rank is gone
    finally:
        os._exit(4)

# One process imports everything once and forks two ranks for each life.
for _ in sys.stdin:
    ends, pids = socket.socketpair(), []
    for index in range(2):
        pids.append(os.fork())
        if pids[-1] == 0:
            rank(index, ends, sys.argv[1])
    for end in ends:
        end.close()
    print(*pids, flush=True)
    print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids), flush=True)
'''


def complete(path: Path) -> int:
    """The iteration of a checkpoint, after comparing every byte of it with what was saved."""
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        number = checkpoint.manifest.iteration
        assert checkpoint.tensor("n")[()] == number
        assert np.array_equal(checkpoint.tensor("w")[...], np.full((64, 512), number, np.float32) + np.arange(512, dtype=np.float32))
        for index in range(2):
            assert (checkpoint.tensor("rng", f"process-{index:05d}")[...] == number * 10 + index).all()
    return number


def newest_number(folder: Path) -> int:
    return max(numbered_checkpoints(folder), default=-1)


def one_life(saver: subprocess.Popen[str], folder: Path, source: random.Random, kill_both: bool) -> None:
    """Start two ranks, let them save at least once, kill one or both at a random moment, and wait until both are gone."""
    before = newest_number(folder)
    print("go", file=saver.stdin, flush=True)
    pids = [int(pid) for pid in saver.stdout.readline().split()]
    end = time.monotonic() + 30
    while newest_number(folder) <= before:
        assert time.monotonic() < end, "no checkpoint within 30 s"
        time.sleep(0.002)
    time.sleep(source.random() * 0.05)  # a round takes some 10 ms
    source.shuffle(pids)
    for pid in pids if kill_both else pids[:1]:
        os.kill(pid, signal.SIGKILL)
    codes = saver.stdout.readline().split()  # the survivor sees the closed pipe and ends: no hang
    assert sorted(codes) == (["-9", "-9"] if kill_both else ["-9", "3"])


@pytest.mark.timeout(120)
def test_killed_at_thirty_random_moments(tmp_path):
    script, folder, source = tmp_path / "saver.py", tmp_path / "run", random.Random(0)
    script.write_text(SAVER)
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(folder)]
    caught_in_the_middle, newest_before, latest_before = 0, -1, -1
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as saver:
        for trial in range(30):
            one_life(saver, folder, source, kill_both=trial % 3 == 0)
            leftovers = [name for name in os.listdir(folder) if re.fullmatch(r"\..*\.(tmp|old)-[0-9a-f]{32}", name)]
            assert len(leftovers) <= 1
            caught_in_the_middle += bool(leftovers)
            newest = complete(newest_checkpoint(folder))
            assert newest == newest_number(folder) > newest_before
            newest_before = newest
            # Nothing that stands under a real name is ever half a checkpoint, and what retention keeps is there.
            numbers = [complete(path) for path in numbered_checkpoints(folder).values()]
            assert len(numbers) >= min(3, newest + 1)
            # Saved over again and again: once there it never vanishes and never goes back (a life may end before it gets to it).
            if (folder / "latest").exists() or latest_before >= 0:
                latest = complete(folder / "latest")
                assert latest_before <= latest <= newest
                latest_before = latest
        saver.stdin.close()
    assert latest_before > 0, "the swap must have been exercised"
    assert caught_in_the_middle >= 3, "the moments must fall into saves"
