"""torch's generators: seeding, and their states as plain arrays."""

from __future__ import annotations

import numpy as np
import torch


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed torch on every device; with `deterministic` ask for deterministic algorithms."""
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def initial_seed() -> int:
    """The seed of torch's default generator, folded to 32 bits."""
    return torch.initial_seed() % 2**32


def generator_states() -> dict[str, np.ndarray]:
    """The state of torch's generator on each device, as uint8."""
    states = {"torch_cpu": torch.get_rng_state().numpy()}
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        states[f"torch_cuda_{index}"] = torch.cuda.get_rng_state(index).numpy()
    return states


def restore_generator_state(name: str, state: np.ndarray) -> bool:
    """Set the generator of that name; False where this machine has no such device."""
    if name == "torch_cpu":
        torch.set_rng_state(torch.from_numpy(state.copy()))
        return True
    index = int(name.removeprefix("torch_cuda_"))
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return False
    torch.cuda.set_rng_state(torch.from_numpy(state.copy()), index)
    return True
