"""What a load did, and what it could not do."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadReport:
    """The result of `load_state`.

    Attributes:
        path: the checkpoint.
        missing, unexpected, mismatched: tensors that were left out; only with `strict=False`, otherwise they are an error.
        not_carried: what cannot cross from the run that wrote the checkpoint to this one, by name: random states of another framework or number of
            processes, optimizer state without a counterpart.
    """

    path: str
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()
    not_carried: tuple[str, ...] = ()
