"""Objects as bytes."""

from __future__ import annotations

import pytest

from xaccel.collectives.objects import from_bytes, to_bytes
from xaccel.errors import LeafTypeError


def test_round_trip() -> None:
    assert from_bytes(to_bytes({"a": [1, None], "b": {2}})) == {"a": [1, None], "b": {2}}


def test_what_does_not_pickle_is_named() -> None:
    with pytest.raises(LeafTypeError, match="type function cannot be sent"):
        to_bytes(lambda: None)
