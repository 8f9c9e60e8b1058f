"""JAX has no global generator; models carry their own streams. What `set_seed` reaches here is where new streams begin."""

from __future__ import annotations

import numpy as np


class Seed:
    """The seed of the run: given by `set_seed`, else drawn once."""

    def __init__(self) -> None:
        self._value: int | None = None

    def set(self, value: int) -> None:
        """From now on."""
        self._value = value

    @property
    def value(self) -> int:
        """The seed, 32 bits."""
        if self._value is None:
            self._value = int(np.random.SeedSequence().generate_state(1)[0])
        return self._value
