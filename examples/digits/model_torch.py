"""The digit classifier in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


class DigitNet(nn.Module):
    """Two convolutions with batch normalisation and one linear layer: (batch, 8, 8) -> (batch, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.norm2 = nn.BatchNorm2d(64)
        self.head = nn.Linear(4 * 4 * 64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm1(self.conv1(images[:, None])))
        hidden = functional.relu(self.norm2(self.conv2(hidden)))
        # Channels last, as Flax has them: so the linear layer's weights mean the same in both.
        return self.head(hidden.permute(0, 2, 3, 1).flatten(1))


def build(schedule: Callable[[int], float]) -> tuple[DigitNet, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Model, optimizer and scheduler; `schedule` maps an optimizer step to a learning rate."""
    model = DigitNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=1e-4)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)


def loss_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy."""
    return functional.cross_entropy(model(batch["image"]), batch["label"])


def predict(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits `(batch, 10)`, without a gradient."""
    with torch.no_grad():
        return model(batch["image"])
