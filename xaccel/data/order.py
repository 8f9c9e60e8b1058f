"""The order of an epoch's samples: a pure function, equal in every process and framework."""

from __future__ import annotations

import numpy as np


def epoch_order(num_samples: int, *, shuffle: bool, seed: int, epoch: int) -> np.ndarray:
    """Sample indices `(num_samples,)` int64 in the order of one epoch.

    Args:
        shuffle: a permutation drawn from (seed, epoch); otherwise 0, 1, 2, …

    >>> epoch_order(4, shuffle=False, seed=0, epoch=0)
    array([0, 1, 2, 3])
    """
    if not shuffle:
        return np.arange(num_samples, dtype=np.int64)
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(num_samples)


def epoch_seed(seed: int, epoch: int) -> int:
    """A seed for a generator that draws one epoch's order; that of epoch 0 is `seed` itself.

    >>> epoch_seed(5, 0)
    5
    """
    if epoch == 0:
        return seed
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0]) % 2**63
