"""What every backend must do, as functions; NumPy (`xaccel.collectives.semantics`) is the judge.

A case runs on every rank at once: `case(bench)`. It raises `AssertionError` where the backend is wrong. `CASES` lists them by name.

    for name, case in CASES.items():
        case(Bench(arrays=..., collectives=..., topology=...))
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from xaccel.collectives import semantics
from xaccel.collectives.communicator import Communicator
from xaccel.errors import CollectiveMismatchError, ConfigurationError, LeafTypeError
from xaccel.process.scope import ProcessScope
from xaccel.process.topology import ProcessTopology

Pair = collections.namedtuple("Pair", ["left", "right"])

DTYPES = tuple(
    np.dtype(each)
    for each in (
        np.bool_,
        np.int8,
        np.uint8,
        np.int16,
        np.int32,
        np.float16,
        np.float32,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        np.complex64,
    )
)
"""Types of which every backend has arrays (64-bit ones JAX has in x64 mode only)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """One rank of a backend under test.

    Attributes:
        arrays, collectives: of the backend.
        topology: of this rank.
    """

    arrays: Any
    collectives: Any
    topology: ProcessTopology

    @property
    def rank(self) -> int:
        """This process."""
        return self.topology.process_index

    @property
    def count(self) -> int:
        """All processes."""
        return self.topology.num_processes

    @property
    def communicator(self) -> Communicator:
        """Without debug checks."""
        return Communicator(self.arrays, self.collectives, self.topology)

    @property
    def checking(self) -> Communicator:
        """With debug checks."""
        return Communicator(self.arrays, self.collectives, self.topology, debug=True)

    @property
    def scope(self) -> ProcessScope:
        """Process control."""
        return ProcessScope(self.topology, self.collectives)

    def make(self, values: Any, dtype: Any = None) -> Any:
        """An array of the backend."""
        return self.arrays.from_numpy(np.array(values, dtype))

    def of_all(self, function: Callable[[int], Any], dtype: Any = None) -> list[np.ndarray]:
        """What each rank brings, by `function(rank)`."""
        return [np.array(function(rank)).astype(dtype) if dtype else np.array(function(rank)) for rank in range(self.count)]

    def same(self, actual: Any, expected: Any, dtype: Any = None) -> None:
        """The backend's array holds `expected`: dtype (where given), shape and every element."""
        values, wanted = np.asarray(self.arrays.to_numpy(actual)), np.asarray(expected)
        if dtype is not None:
            assert values.dtype == dtype, f"rank {self.rank}: dtype {values.dtype}, expected {dtype}"
        assert values.shape == wanted.shape, f"rank {self.rank}: shape {values.shape}, expected {wanted.shape}"
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(values.astype(wide), wanted.astype(wide), rtol=1e-6, err_msg=f"rank {self.rank}")


def gather_joins_in_rank_order(bench: Bench) -> None:
    """Every type, two dims."""
    for dtype in DTYPES:
        everyone = bench.of_all(lambda rank: np.arange(6).reshape(2, 3) % 2 + rank, dtype)
        bench.same(bench.communicator.gather(bench.make(everyone[bench.rank])), semantics.gathered(everyone), dtype)


def gather_of_scalars_gives_one_each(bench: Bench) -> None:
    """Also for one process (jax 25783)."""
    bench.same(bench.communicator.gather(bench.make(bench.rank, np.int32)), np.arange(bench.count), np.int32)
    bench.same(bench.communicator.gather(bench.make(np.full(10, 1.5, np.float32))), np.full(10 * bench.count, 1.5), np.float32)


def empty_arrays_pass(bench: Bench) -> None:
    """(0, 3) gathered is (0, 3); nothing reduced is nothing; no signal (C-22)."""
    empty = bench.make(np.zeros((0, 3), np.float32))
    bench.same(bench.communicator.gather(empty), np.zeros((0, 3)), np.float32)
    bench.same(bench.communicator.reduce(empty, "sum"), np.zeros((0, 3)), np.float32)
    bench.same(bench.communicator.reduce(empty, "mean"), np.zeros((0, 3)), np.float32)
    bench.same(bench.communicator.broadcast(empty), np.zeros((0, 3)), np.float32)
    bench.same(bench.communicator.gather(bench.make(np.zeros((2, 0), np.int32))), np.zeros((2 * bench.count, 0)), np.int32)


def trees_keep_their_containers(bench: Bench) -> None:
    """Containers come back as they were; arrays of several types in one call; `None` and strings stay."""

    def tree(rank: int) -> Any:
        return {
            "pair": Pair(np.full((1, 2), rank, np.float32), [np.array(rank, np.int32)]),
            "name": "text",
            "nothing": None,
            "more": (np.arange(3, dtype=np.float32) + rank, np.array([rank % 2 == 0])),
        }

    mine = tree(bench.rank)
    made = {
        **mine,
        "pair": Pair(bench.make(mine["pair"].left), [bench.make(mine["pair"].right[0])]),
        "more": tuple(map(bench.make, mine["more"])),
    }
    result = bench.communicator.gather(made)
    everyone = [tree(rank) for rank in range(bench.count)]
    assert isinstance(result["pair"], Pair)
    assert isinstance(result["more"], tuple)
    assert (result["name"], result["nothing"]) == ("text", None)
    bench.same(result["pair"].left, semantics.gathered([each["pair"].left for each in everyone]), np.float32)
    bench.same(result["pair"].right[0], np.arange(bench.count), np.int32)
    for place, dtype in enumerate((np.float32, np.bool_)):
        bench.same(result["more"][place], semantics.gathered([each["more"][place] for each in everyone]), dtype)


def reduce_means_what_numpy_says(bench: Bench) -> None:
    """Every type that is ordered, every reduction; the input is left as it was."""
    for dtype in (np.dtype(each) for each in (np.int8, np.uint8, np.int16, np.int32, np.float16, np.float32, ml_dtypes.bfloat16)):
        for reduction in ("sum", "mean", "max", "min", "none"):
            everyone = bench.of_all(lambda rank: [[1 + rank, 2], [4, 5 * rank]], dtype)
            array = bench.make(everyone[bench.rank])
            expected = semantics.reduced(everyone, reduction, 1.0, bench.rank)
            bench.same(bench.communicator.reduce(array, reduction), expected, expected.dtype)
            bench.same(array, everyone[bench.rank], dtype)


def reduce_of_ranks(bench: Bench) -> None:
    """Sum, mean and scale of the rank; the mean of integers is a float (C-25)."""
    total = bench.count * (bench.count - 1) / 2
    for dtype in (np.float32, np.int32):
        rank = bench.make(bench.rank, dtype)
        bench.same(bench.communicator.reduce(rank, "sum"), total, dtype)
        bench.same(bench.communicator.reduce(rank, "mean"), total / bench.count, np.float32)
        bench.same(bench.communicator.reduce(rank, "sum", scale=0.5), total / 2, np.float32)
        bench.same(rank, bench.rank, dtype)


def reduce_of_bools_counts(bench: Bench) -> None:
    """Sums count; the greatest is "any", the least "all"; the mean is a share."""
    flags = bench.make([True, bench.rank == 0])
    counted = bench.communicator.reduce(flags, "sum")
    bench.same(counted, [bench.count, 1])
    assert np.asarray(bench.arrays.to_numpy(counted)).dtype.kind == "i"
    bench.same(bench.communicator.reduce(flags, "max"), [True, True], np.bool_)
    bench.same(bench.communicator.reduce(flags, "min"), [True, bench.count == 1], np.bool_)
    bench.same(bench.communicator.reduce(flags, "mean"), np.array([1, 1 / bench.count], np.float32), np.float32)


def reduce_of_eight_bit_floats(bench: Bench) -> None:
    """They are added as numbers, not as bytes."""
    dtype = np.dtype(ml_dtypes.float8_e4m3fn)
    bench.same(bench.communicator.reduce(bench.make([1.0, 0.5], dtype), "sum"), [bench.count, bench.count / 2], dtype)


def several_arrays_reduce_together(bench: Bench) -> None:
    """Arrays of two types and several shapes in one call."""
    tree = {
        "a": bench.make(np.full((2, 2), bench.rank, np.float32)),
        "b": [bench.make(1.0, np.float32), bench.make([bench.rank], np.int32)],
    }
    result = bench.communicator.reduce(tree, "sum")
    total = bench.count * (bench.count - 1) // 2
    bench.same(result["a"], np.full((2, 2), total), np.float32)
    bench.same(result["b"][0], bench.count, np.float32)
    bench.same(result["b"][1], [total], np.int32)


def broadcast_from_any_process(bench: Bench) -> None:
    """Every type, from the first and from the last; a column only, and the other one untouched (C-24)."""
    for dtype in DTYPES:
        for source in {0, bench.count - 1}:
            everyone = bench.of_all(lambda rank: [[rank, 1], [1, 0]], dtype)
            bench.same(bench.communicator.broadcast(bench.make(everyone[bench.rank]), source), everyone[source], dtype)
    whole = bench.make(np.array([[1, 2], [3, 4]], np.int32) * (bench.rank + 1))
    bench.same(bench.communicator.broadcast(whole[:, 0]), [1, 3], np.int32)
    bench.same(whole, np.array([[1, 2], [3, 4]]) * (bench.rank + 1), np.int32)


def column_of_a_matrix_gathers(bench: Bench) -> None:
    """Arrays whose elements are not next to each other."""
    everyone = bench.of_all(lambda rank: np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * rank)
    array = bench.make(everyone[bench.rank])
    bench.same(bench.communicator.gather(array[:, 1]), semantics.gathered([each[:, 1] for each in everyone]), np.float32)
    bench.same(bench.communicator.gather(array.T), semantics.gathered([each.T for each in everyone]), np.float32)


def padding_keeps_the_dtype(bench: Bench) -> None:
    """On every rank, whether it pads or not (cases 4, C-23); then the gather is even."""
    for dtype in (np.dtype(each) for each in (np.bool_, np.int8, ml_dtypes.bfloat16, np.float32)):
        longest = bench.count
        array = bench.make(np.ones(bench.rank + 1, dtype))
        padded = bench.communicator.pad_across_processes(array, pad_index=0)
        bench.same(padded, [1] * (bench.rank + 1) + [0] * (longest - bench.rank - 1), dtype)
        bench.same(
            bench.communicator.gather(padded), [1 if place <= rank else 0 for rank in range(longest) for place in range(longest)], dtype
        )


def padding_by_dim_and_side(bench: Bench) -> None:
    """Another dim, a negative one, the front, another value; an array without the dim stays."""
    array = bench.make(np.full((2, bench.rank + 1), 7, np.int32))
    missing = bench.count - bench.rank - 1
    front = np.concatenate([np.full((2, missing), -100), np.full((2, bench.rank + 1), 7)], axis=1)
    for dim in (1, -1):
        bench.same(bench.communicator.pad_across_processes(array, dim=dim, pad_index=-100, pad_first=True), front, np.int32)
    flat = bench.make([1, 2], np.int32)
    both = bench.communicator.pad_across_processes([array, flat, "text"], dim=1)
    bench.same(both[0], np.concatenate([np.full((2, bench.rank + 1), 7), np.zeros((2, missing))], axis=1), np.int32)
    bench.same(both[1], [1, 2], np.int32)
    assert both[2] == "text"


def objects_travel(bench: Bench) -> None:
    """Lists are joined, anything else gives one entry for each process; big and small ones together."""
    assert bench.communicator.gather_object([bench.rank, "x"]) == [item for rank in range(bench.count) for item in (rank, "x")]
    assert bench.communicator.gather_object({"r": bench.rank}) == [{"r": rank} for rank in range(bench.count)]
    sizes = [3_000_000 if rank == 0 else rank for rank in range(bench.count)]
    assert [len(data) for data in bench.communicator.gather_object(b"z" * sizes[bench.rank])] == sizes
    values = [bench.rank, {"a": bench.rank}, "text"]
    last = bench.count - 1
    assert bench.communicator.broadcast_object_list(values, from_process=last) == [last, {"a": last}, "text"]
    assert values == [last, {"a": last}, "text"]


def concatenate_joins_leaf_by_leaf(bench: Bench) -> None:
    """Along any dim, inside containers."""
    batches = [{"x": bench.make(np.full((1, 2), each, np.float32)), "s": "a"} for each in range(3)]
    bench.same(bench.communicator.concatenate(batches)["x"], [[0, 0], [1, 1], [2, 2]], np.float32)
    bench.same(bench.communicator.concatenate(batches, dim=1)["x"], [[0, 0, 1, 1, 2, 2]], np.float32)


def wrong_calls_are_refused(bench: Bench) -> None:
    """Before anything is sent: a number as a leaf, an unknown reduction, a process that does not exist."""
    _refused(LeafTypeError, "['loss']", lambda: bench.communicator.gather({"loss": 1.5}))
    _refused(ConfigurationError, "median", lambda: bench.communicator.reduce(bench.make([1.0]), "median"))
    _refused(ConfigurationError, f"from_process={bench.count}", lambda: bench.communicator.broadcast(bench.make([1.0]), bench.count))


def debug_mode_names_each_shape(bench: Bench) -> None:
    """Rank 0 brings (1, 3), the others (4, 3): the same error everywhere (cases 28, C-21); padding them first is fine."""
    if bench.count == 1:
        return
    array = bench.make(np.ones((1 if bench.rank == 0 else 4, 3), np.float32))
    message = _refused(CollectiveMismatchError, "float32(1, 3)", lambda: bench.checking.gather({"x": array}))
    assert all(part in message for part in ("gather of ['x']", "process 0 brings float32(1, 3)", "process 1 brings float32(4, 3)")), message
    assert len(set(bench.communicator.gather_object(message))) == 1
    padded = bench.checking.pad_across_processes(array)
    bench.same(bench.checking.gather(padded).sum(), 3 * (1 + 4 * (bench.count - 1)))


def debug_mode_names_each_operation(bench: Bench) -> None:
    """One gathers, the others reduce."""
    if bench.count == 1:
        return
    array = bench.make([1.0], np.float32)
    message = _refused(
        CollectiveMismatchError,
        "process 0 calls gather",
        lambda: bench.checking.gather(array) if bench.rank == 0 else bench.checking.reduce(array),
    )
    assert "process 1 calls reduce" in message


def split_gives_the_first_one_more(bench: Bench) -> None:
    """Sizes, order and type of the parts; padding repeats the last element (cases 1 to 3, C-30 to C-34)."""
    for length in (17, 3, 0, bench.count):
        for kind in (list, tuple):
            values = kind(range(length))
            with bench.scope.split_between_processes(values) as part:
                assert type(part) is kind
                everyone = bench.collectives.gather_objects(list(part))
            assert [item for each in everyone for item in each] == list(range(length))
            assert [len(each) for each in everyone] == [
                length // bench.count + (rank < length % bench.count) for rank in range(bench.count)
            ]
            with bench.scope.split_between_processes(values, apply_padding=True) as part:
                everyone = bench.collectives.gather_objects(list(part))
            assert {len(each) for each in everyone} == {-(-length // bench.count)}
    array = bench.make(np.arange(17, dtype=np.int32))
    with bench.scope.split_between_processes({"a": array, "b": list(range(17))}, apply_padding=True) as part:
        bench.same(part["a"], part["b"], np.int32)
    _refused(ConfigurationError, "{'a': 17, 'b': 2}", lambda: bench.scope.split_between_processes({"a": array, "b": [1, 2]}).__enter__())


def the_main_process_goes_first(bench: Bench) -> None:
    """Whatever it does in the block is done before the others enter; also when it raises."""
    with bench.scope.main_process_first():
        pass
    try:
        with bench.scope.local_main_process_first():
            if bench.topology.is_local_main_process:
                raise KeyError("on purpose")
    except KeyError:
        assert bench.topology.is_local_main_process
    bench.scope.wait_for_everyone()


def decorated_functions_run_where_they_should(bench: Bench) -> None:
    """On one process each; elsewhere the call gives `None`."""
    last = bench.count - 1
    scope = bench.scope
    decorators = [scope.on_main_process, scope.on_local_main_process, scope.on_last_process, scope.on_process(process_index=last)]
    decorators.append(scope.on_local_process(local_process_index=0))
    for decorate, where in zip(decorators, (0, 0, last, last, 0), strict=True):
        assert decorate(lambda value: value)(5) == (5 if bench.rank == where else None)


def _refused(kind: type[Exception], part: str, call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        assert part in str(error), f"expected {part!r} in the message: {error}"
        return str(error)
    raise AssertionError(f"expected {kind.__name__} with {part!r}, got no error")


CASES: dict[str, Callable[[Bench], None]] = {
    case.__name__: case
    for case in (
        gather_joins_in_rank_order,
        gather_of_scalars_gives_one_each,
        empty_arrays_pass,
        trees_keep_their_containers,
        reduce_means_what_numpy_says,
        reduce_of_ranks,
        reduce_of_bools_counts,
        reduce_of_eight_bit_floats,
        several_arrays_reduce_together,
        broadcast_from_any_process,
        column_of_a_matrix_gathers,
        padding_keeps_the_dtype,
        padding_by_dim_and_side,
        objects_travel,
        concatenate_joins_leaf_by_leaf,
        wrong_calls_are_refused,
        debug_mode_names_each_shape,
        debug_mode_names_each_operation,
        split_gives_the_first_one_more,
        the_main_process_goes_first,
        decorated_functions_run_where_they_should,
    )
}
