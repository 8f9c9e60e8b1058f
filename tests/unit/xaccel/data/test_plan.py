from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xaccel.data.order import epoch_order
from xaccel.data.plan import EpochPlan, global_batch_size
from xaccel.errors import DataError

PLANS = {
    "num_samples": st.integers(0, 60),
    "rows": st.integers(1, 7),
    "num_replicas": st.integers(1, 5),
    "even_batches": st.booleans(),
    "drop_last": st.booleans(),
    "position": st.integers(0, 70),
}


def oracle(num_samples: int, rows: int, num_replicas: int, even_batches: bool, drop_last: bool, position: int) -> list[list[list[int]]]:
    """For each round the rows of each replica, written down plainly."""
    left = list(range(min(position, num_samples), num_samples))
    size = rows * num_replicas
    result = []
    for start in range(0, len(left), size):
        real = left[start : start + size]
        if len(real) < size and drop_last:
            break
        filling = iter([index % num_samples for index in range(size)])
        while len(real) < size and even_batches and num_replicas > 1:
            real = [*real, next(filling)]
        result.append([real[replica * rows : (replica + 1) * rows] for replica in range(num_replicas)])
    return result


@settings(max_examples=150, deadline=None)
@given(**PLANS)
def test_the_plan_is_what_the_definition_says(num_samples, rows, num_replicas, even_batches, drop_last, position):
    plan = EpochPlan(
        num_samples=num_samples,
        global_batch=rows * num_replicas,
        num_replicas=num_replicas,
        even_batches=even_batches,
        drop_last=drop_last,
        position=position,
    )
    expected = oracle(num_samples, rows, num_replicas, even_batches, drop_last, position)
    assert [[plan.rows(index, replica).tolist() for replica in range(num_replicas)] for index in range(plan.num_rounds)] == expected
    assert [plan.num_batches(replica) for replica in range(num_replicas)] == [
        sum(1 for each in expected if each[replica]) for replica in range(num_replicas)
    ]
    kept = []
    for index, each in enumerate(expected):
        row = [place for part in each for place in part]
        kept += row[: plan.remainder(index)] if plan.remainder(index) >= 0 else row
        assert plan.num_real(index) == len(row if plan.remainder(index) < 0 else row[: plan.remainder(index)])
    assert kept == list(range(position, position + len(kept)))
    if not drop_last:
        assert len(kept) == max(0, num_samples - position)


@settings(max_examples=50, deadline=None)
@given(num_samples=st.integers(0, 200), seed=st.integers(0, 2**63), epoch=st.integers(0, 1000))
def test_an_order_is_a_permutation_and_a_pure_function(num_samples, seed, epoch):
    order = epoch_order(num_samples, shuffle=True, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(num_samples))
    assert np.array_equal(order, epoch_order(num_samples, shuffle=True, seed=seed, epoch=epoch))


def test_epochs_and_seeds_differ():
    orders = {tuple(epoch_order(50, shuffle=True, seed=seed, epoch=epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(DataError, match="7 rows does not divide over 2"):
        EpochPlan(num_samples=3, global_batch=global_batch_size(7, 2, True), num_replicas=2)
