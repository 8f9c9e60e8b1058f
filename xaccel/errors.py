"""Every error that xaccel raises on purpose.

    XaccelError
    ├── ConfigurationError(ValueError)          an argument, a setting or a combination of them is wrong
    ├── UnsupportedError(NotImplementedError)   right, but this backend or strategy cannot do it
    ├── BackendNotFoundError(ImportError)       no adapter for what was asked
    ├── NotPreparedError(ValueError)            an object that `prepare` has never seen
    ├── StepError(RuntimeError)                 backward, clip and step called in an order that has no meaning
    ├── CollectiveError(RuntimeError)
    │   ├── CollectiveMismatchError(ValueError)     processes bring different shapes, dtypes or structures
    │   └── CollectiveTimeoutError(TimeoutError)    some processes never came
    ├── LeafTypeError(TypeError)                a leaf of a nested structure is of a kind that the operation does not take
    ├── DataError(ValueError)                   a loader, sampler or batch that cannot be planned
    └── CheckpointError
        ├── CheckpointNotFoundError(FileNotFoundError)
        ├── CorruptCheckpointError(ValueError)      bytes that are not what the manifest or header says
        ├── CheckpointVersionError(ValueError)      written by a newer format version
        ├── CheckpointMismatchError(ValueError)     missing, unexpected or differently shaped tensors
        └── CheckpointSpaceError(OSError)           not enough room on the disk

Each derives from the builtin that callers already catch. A message says what was expected, what came, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class XaccelError(Exception):
    """Base of all errors raised by xaccel."""


class ConfigurationError(XaccelError, ValueError):
    """An argument, a setting, or a combination of them is wrong."""


class UnsupportedError(XaccelError, NotImplementedError):
    """What was asked is meaningful, but this backend or strategy cannot do it."""


class BackendNotFoundError(XaccelError, ImportError):
    """No adapter is installed for the framework that was asked for."""


class NotPreparedError(XaccelError, ValueError):
    """An object was passed that `prepare` has never seen."""


class StepError(XaccelError, RuntimeError):
    """`backward`, clipping and `step` were called in an order that has no meaning."""


class CollectiveError(XaccelError, RuntimeError):
    """A collective operation failed."""


class CollectiveMismatchError(CollectiveError, ValueError):
    """The processes brought different shapes, dtypes or structures to one collective."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """Some processes did not come to a collective within the time limit."""


class LeafTypeError(XaccelError, TypeError):
    """A leaf of a nested structure is of a kind that the operation does not take."""


class DataError(XaccelError, ValueError):
    """A loader, a sampler or a batch that the data plan cannot serve."""


class CheckpointError(XaccelError):
    """Base of the errors about checkpoints."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """There is no complete checkpoint at the path."""


class CorruptCheckpointError(CheckpointError, ValueError):
    """The bytes on disk are not what the manifest or a file's header says."""


class CheckpointVersionError(CheckpointError, ValueError):
    """The checkpoint was written by a newer version of the format."""


class CheckpointSpaceError(CheckpointError, OSError):
    """The file system has not enough room for the checkpoint."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """The checkpoint and the live objects do not hold the same tensors.

    Attributes:
        missing: names that the live objects have and the checkpoint lacks.
        unexpected: names that the checkpoint has and no live object takes.
        mismatched: one line for each tensor of another shape or dtype, with both.
    """

    def __init__(self, message: str, *, missing: Sequence[str] = (), unexpected: Sequence[str] = (), mismatched: Sequence[str] = ()):
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.mismatched = tuple(mismatched)
        lines = [message]
        for title, names in (
            ("missing in the checkpoint", self.missing),
            ("unexpected in the checkpoint", self.unexpected),
            ("mismatched", self.mismatched),
        ):
            if names:
                lines.append(f"  {title} ({len(names)}): " + ", ".join(names))
        super().__init__("\n".join(lines))
