"""Options of prepared loaders."""

from __future__ import annotations

import dataclasses

from xaccel.errors import UnsupportedError


@dataclasses.dataclass(frozen=True)
class DataLoaderConfiguration:
    """How loaders are divided over replicas.

    Args:
        split_batches: a loader's batch size is the global one and is divided; otherwise it is that of each replica.
        dispatch_batches: process 0 reads and the others receive; `None`: for iterable data only.
        even_batches: every replica gets equally many full batches, samples of the beginning filling the end.
        use_seedable_sampler: shuffling is a pure function of seed and epoch, equal in both frameworks.
        data_seed: seed of the shuffle; drawn once for the run (after `set_seed`: fixed) where `None`.
        non_blocking: transfers to the device overlap with the host.
        use_stateful_dataloader: torchdata's stateful loader.

    Raises:
        UnsupportedError: `use_stateful_dataloader`.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False

    def __post_init__(self) -> None:
        if self.use_stateful_dataloader:
            raise UnsupportedError(
                "use_stateful_dataloader: prepared loaders keep their own position here; torchdata's loader is not in this version"
            )
