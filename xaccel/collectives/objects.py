"""Objects on the wire: pickled bytes, and what to do with a reply that cannot be read."""

from __future__ import annotations

import pickle
from typing import Any

from xaccel.errors import LeafTypeError


def to_bytes(value: Any) -> bytes:
    """The pickled object.

    Raises:
        LeafTypeError: it does not pickle; the message says what it is and why.

    >>> from_bytes(to_bytes({"a": [1, None]}))
    {'a': [1, None]}
    """
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise LeafTypeError(
            f"an object of type {type(value).__name__} cannot be sent to other processes: expected something that pickles ({error})"
        ) from error


def from_bytes(data: bytes) -> Any:
    """The object again. The bytes come from a process of the same run, which is trusted as the script itself is."""
    return pickle.loads(data)
