"""Which samples each replica sees in which round: integers only.

Requirements, and why it is written this way:

* A *round* is one global batch. Its rows are consecutive in the epoch's order: replica 0's rows first, then replica 1's, and so on. So
  the rows that `gather` joins in replica order are in the order of the data, and filling only ever stands at the end of the last round.
* With `split_batches=False` a round has `batch_size * num_replicas` rows, with `split_batches=True` it has `batch_size`; nothing else differs. At
  equal global batch the rounds do not depend on the number of replicas.
* What remains at the end is dropped (`drop_last`), filled up from the beginning of the epoch (`even_batches`), or handed out as far
  as it goes, so that some replicas get a shorter batch, or none. A single replica has nobody to be even with: its last batch is short,
  as in a plain loader.
* A position is a number of samples, counted over all replicas, so that a run resumes with other replicas or another batch size: the rest of the
  epoch is planned anew from there.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from xaccel.errors import DataError


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """The rounds of one epoch from a position on.

    Attributes:
        num_samples: samples of the whole epoch.
        global_batch: rows of a full round.
        num_replicas: replicas that divide a round.
        even_batches, drop_last: what happens at the end.
        position: samples already consumed.
    """

    num_samples: int
    global_batch: int
    num_replicas: int
    even_batches: bool = True
    drop_last: bool = False
    position: int = 0

    def __post_init__(self) -> None:
        if self.global_batch < 1 or self.global_batch % self.num_replicas:
            raise DataError(
                f"a global batch of {self.global_batch} rows does not divide over {self.num_replicas} replicas: "
                "with split_batches=True the batch size must be a multiple of the number of replicas"
            )

    @property
    def fills(self) -> bool:
        """Whether the last round is filled up."""
        return self.even_batches and self.num_replicas > 1

    @property
    def rows_per_replica(self) -> int:
        """Rows of a replica in a full round."""
        return self.global_batch // self.num_replicas

    @property
    def num_left(self) -> int:
        """Samples from the position on."""
        return max(0, self.num_samples - self.position)

    @property
    def num_rounds(self) -> int:
        """Rounds from the position on, as the replica with the most batches sees them."""
        return self.num_left // self.global_batch if self.drop_last else -(-self.num_left // self.global_batch)

    def num_batches(self, replica: int) -> int:
        """Batches of one replica; fewer than `num_rounds` only where the end is handed out as far as it goes."""
        if self.drop_last or self.fills or self.num_rounds == 0:
            return self.num_rounds
        return self.num_rounds - (self.num_real(self.num_rounds - 1) <= replica * self.rows_per_replica)

    def num_real(self, round_index: int) -> int:
        """Rows of a round that are not filling."""
        return min(self.global_batch, self.num_left - round_index * self.global_batch)

    def remainder(self, round_index: int) -> int:
        """Rows to keep of a round that was filled up; -1 where there is no filling."""
        real = self.num_real(round_index)
        return real if self.fills and real < self.global_batch else -1

    def rows(self, round_index: int, replica: int) -> np.ndarray:
        """Places in the epoch's order, int64, of one replica's rows."""
        first = self.position + round_index * self.global_batch + replica * self.rows_per_replica
        places = np.arange(first, first + self.rows_per_replica, dtype=np.int64)
        if not self.fills:
            return places[places < self.num_samples]
        # Filling begins with the epoch's first sample, and goes round as often as it takes.
        return np.where(places < self.num_samples, places, (places - self.num_samples) % max(1, self.num_samples))


def global_batch_size(batch_size: int, num_replicas: int, split_batches: bool) -> int:
    """Rows of a full round.

    >>> global_batch_size(8, 4, False), global_batch_size(8, 4, True)
    (32, 8)
    """
    return batch_size if split_batches else batch_size * num_replicas
