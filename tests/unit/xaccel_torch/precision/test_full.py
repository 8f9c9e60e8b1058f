"""Full precision changes nothing."""

from __future__ import annotations

import torch

from xaccel_torch.precision.full import FullPrecision


def test_every_hook_does_nothing() -> None:
    precision = FullPrecision()
    model, loss = torch.nn.Linear(1, 1), torch.tensor(2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert precision.convert(model) is model
    assert precision.scale(loss) is loss
    precision.unscale(optimizer)
    assert precision.step(optimizer)
    precision.forget(optimizer)
    precision.restore(model)
    with precision.autocast():
        assert not torch.is_autocast_enabled("cpu")
    precision.load_state_dict({"scale": 2.0})
    assert precision.state_dict() == {}
