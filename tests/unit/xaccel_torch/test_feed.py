from __future__ import annotations

from collections import namedtuple

import numpy as np
import torch

from xaccel.process.topology import ProcessTopology, ReplicaLayout
from xaccel_torch.feed import TorchFeed

Pair = namedtuple("Pair", "x name")


def test_arrays_move_and_everything_else_passes():
    feed = TorchFeed(ProcessTopology(device=torch.device("cpu")))
    tensor = torch.ones(2)
    batch = feed.place({"pair": Pair(tensor, "a"), "y": [np.arange(3), None]}, ReplicaLayout())
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].x is tensor
    assert batch["pair"].name == "a"
    assert batch["y"][0].tolist() == [0, 1, 2]
    assert batch["y"][0].dtype == torch.int64
    assert batch["y"][1] is None


def test_a_batch_goes_to_another_device():
    feed = TorchFeed(ProcessTopology(device=torch.device("meta"), device_kind="meta"), non_blocking=True)
    assert feed.place([torch.ones(2)], ReplicaLayout())[0].device.type == "meta"
