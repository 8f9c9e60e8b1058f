from __future__ import annotations

import collections
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xaccel.checkpoint.values import decode, encode
from xaccel.errors import ConfigurationError, CorruptCheckpointError

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5)
keys = st.text(max_size=4) | st.integers() | st.tuples(st.integers(), st.text(max_size=2))
trees = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)


@given(trees)
@settings(max_examples=80, deadline=None)
def test_values_come_back_through_json(value):
    assert decode(json.loads(json.dumps(encode(value), allow_nan=False))) == value


def test_what_json_lacks():
    counter = collections.Counter({30: 1, 60: 2})
    back = decode(
        json.loads(
            json.dumps(encode({"milestones": counter, "best": -math.inf, "nan": math.nan, "seen": {1, 2}, "$odd": 1, "big": 2**127}))
        )
    )
    assert type(back["milestones"]) is collections.Counter and back["milestones"] == counter
    assert back["best"] == -math.inf and math.isnan(back["nan"]) and back["seen"] == {1, 2} and back["$odd"] == 1 and back["big"] == 2**127


def test_arrays_pass_through_the_frameworks_own():
    back = decode(encode([np.float32(1.5), np.array([[1, 2]], np.int64)]), lambda array: ("device", array))
    assert back[0][0] == "device" and back[0][1].dtype == np.float32 and back[0][1] == 1.5
    assert back[1][1].tolist() == [[1, 2]] and back[1][1].flags.writeable


def test_other_values_are_refused_by_place():
    with pytest.raises(ConfigurationError, match=r"scheduler\['lr_lambda'\]\[0\] is a function"):
        encode({"lr_lambda": [lambda step: step]}, "scheduler")


@pytest.mark.parametrize(
    "value",
    [
        {"$code": "x"},
        {"$bytes": "%%"},
        {"$array": {"dtype": "F32", "shape": [3], "data": ""}},
        {"$float": "x"},
        {"$dict": [1]},
        {"$set": [[1]]},
    ],
)
def test_unknown_or_false_kinds_are_refused(value):
    with pytest.raises(CorruptCheckpointError, match=r"kind '\$"):
        decode(value)
