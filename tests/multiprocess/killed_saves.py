"""Thirty rounds: two torch processes call `save_state` in a loop, one is killed at a random moment, and the newest checkpoint must be right.

A program of its own, so that torch is imported once and each round only forks.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from xaccel import Accelerator, ProjectConfiguration
from xaccel.checkpoint.layout import open_checkpoint
from xaccel.checkpoint.retention import newest_checkpoint, numbered_checkpoints
from xaccel.launch.ranks import LaunchRequest, rank_environments

ROUNDS = 30
SHAPE = (64, 512)


def work(folder: str, environment: dict[str, str]) -> None:
    """One rank: save models filled with the iteration's number, until killed."""
    os.environ.update(environment)
    accelerator = Accelerator(
        backend="torch", cpu=True, project_config=ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=3)
    )
    model: Any = torch.nn.Module()
    for index in range(4):
        model.register_parameter(f"part{index}", torch.nn.Parameter(torch.zeros(SHAPE)))
    model = accelerator.prepare_model(model, evaluation_mode=True)
    for iteration in range(10_000):
        with torch.no_grad():
            for index, parameter in enumerate(model.parameters()):
                parameter.fill_(iteration + index / 8)
        accelerator.save_state()


def check(folder: Path) -> int:
    """The newest complete checkpoint holds what was saved under its number; returns the number, -1 where none was complete yet."""
    if not any(numbered_checkpoints(folder).values()):
        return -1
    newest = newest_checkpoint(folder)
    number = int(newest.name.rpartition("_")[2])
    with open_checkpoint(newest) as checkpoint:
        for index in range(4):
            values = checkpoint.tensor(f"part{index}", "model")[...]
            assert values.shape == SHAPE
            assert (values == number + index / 8).all(), f"{newest}: part{index} is not what save number {number} wrote"
    return number


def one_round(folder: Path, moment: random.Random) -> int:
    children = []
    for environment in rank_environments(LaunchRequest(backend="torch", num_processes=2, cpu=True), {}):
        child = os.fork()
        if child == 0:
            try:
                work(str(folder), environment)
            finally:
                os._exit(1)
        children.append(child)
    deadline = time.monotonic() + 30
    while not (folder / "checkpoints").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(moment.uniform(0.0, 0.6))
    os.kill(moment.choice(children), signal.SIGKILL)
    time.sleep(0.05)
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for child in children:
        os.waitpid(child, 0)
    return check(folder / "checkpoints")


def main() -> None:
    torch.set_num_threads(1)
    moment = random.Random(int(sys.argv[2]))
    numbers = []
    for index in range(ROUNDS):
        folder = Path(sys.argv[1]) / f"round{index}"
        numbers.append(one_round(folder, moment))
        shutil.rmtree(folder)
    assert sum(number >= 0 for number in numbers) > ROUNDS // 2, f"too few rounds came to a complete save: {numbers}"
    print("newest complete saves:", numbers)


if __name__ == "__main__":
    main()
