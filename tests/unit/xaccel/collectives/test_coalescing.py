"""Buffers: every element once, in order, one buffer for each dtype."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from xaccel.collectives.coalescing import plan_buffers

arrays = st.lists(st.tuples(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(["float32", "int8", "bool"])), max_size=8)


@settings(max_examples=50, deadline=None)
@given(arrays)
def test_every_array_lies_once_in_the_buffer_of_its_dtype(described: list[tuple[tuple[int, ...], str]]) -> None:
    buffers = plan_buffers([shape for shape, _ in described], [dtype for _, dtype in described])
    assert len({buffer.dtype for buffer in buffers}) == len(buffers)
    assert sorted(segment.index for buffer in buffers for segment in buffer.segments) == list(range(len(described)))
    for buffer in buffers:
        end = 0
        for segment in buffer.segments:
            assert (segment.start, segment.shape, buffer.dtype) == (end, *described[segment.index])
            end = segment.stop
            assert segment.stop - segment.start == math.prod(segment.shape)
        assert end == buffer.size
