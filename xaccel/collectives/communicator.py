"""Collectives over nested structures: flatten, check, let the adapter move flat lists of arrays, rebuild."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xaccel import tree
from xaccel.collectives.checks import check_agreement, signature
from xaccel.collectives.padding import dim_size, padding_after
from xaccel.errors import ConfigurationError, LeafTypeError
from xaccel.process.topology import ProcessTopology

REDUCTIONS = ("sum", "mean", "max", "min", "none")


class Communicator:
    """The collective methods of `Accelerator`.

    A structure is any nesting of the containers of `xaccel.tree`; array leaves take part, `None` and strings stay as they are. All
    array leaves of a call travel together: one collective for each dtype.

    Args:
        arrays: what is an array, and small operations on arrays.
        collectives: flat lists of arrays between processes.
        topology: where this process stands.
        debug: compare structures, shapes and dtypes over the processes before each operation.
    """

    def __init__(self, arrays: Any, collectives: Any, topology: ProcessTopology, debug: bool = False):
        self._arrays = arrays
        self._collectives = collectives
        self._topology = topology
        self._debug = debug

    def is_array(self, value: Any) -> bool:
        """Whether a leaf takes part in collectives."""
        return self._arrays.is_array(value)

    def first_rows(self, array: Any, num_rows: int, of_rows: int) -> Any:
        """The first rows of an array that has `of_rows` rows; any other array as it is."""
        shape = self._arrays.shape(array)
        return self._arrays.narrow(array, 0, 0, num_rows) if shape and shape[0] == of_rows else array

    def gather(self, value: Any) -> Any:
        """Arrays `(b, ...)` of all processes joined in rank order, `(num_processes * b, ...)`; a 0-d array counts as `(1,)`.

        Raises:
            LeafTypeError: a leaf is neither an array nor `None` nor a string.
            CollectiveMismatchError: in debug mode, processes bring different shapes, dtypes or structures.
        """
        chosen, put_back = self._select("gather", value)
        return put_back(self._collectives.gather(chosen))

    def reduce(self, value: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Arrays reduced element-wise over the processes, times `scale`; the inputs are left as they are.

        Args:
            reduction: "sum", "mean", "max", "min" or "none"; the mean of integers is a float.

        Raises:
            ConfigurationError: an unknown reduction.
        """
        if reduction not in REDUCTIONS:
            raise ConfigurationError(f"reduce(reduction={reduction!r}): expected one of {', '.join(REDUCTIONS)}")
        chosen, put_back = self._select("reduce", value)
        return put_back(self._collectives.reduce(chosen, reduction, scale))

    def broadcast(self, value: Any, from_process: int = 0) -> Any:
        """The arrays of one process on all, as new arrays; the others bring arrays of the same shapes and dtypes."""
        self._check_process(from_process)
        chosen, put_back = self._select("broadcast", value)
        return put_back(self._collectives.broadcast(chosen, from_process))

    def pad_across_processes(self, value: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        """Arrays padded along `dim` to the longest among the processes; dtypes stay.

        Args:
            dim: an array without this dim stays as it is; negative dims count from the end.
            pad_index: the value of the padding, cast to each array's dtype.
            pad_first: pad at the beginning instead of the end.
        """
        chosen, put_back = self._select("pad_across_processes", value, with_sizes=False)
        if not chosen:
            return value
        shapes = [self._arrays.shape(array) for array in chosen]
        sizes = np.array([[dim_size(shape, dim) for shape in shapes]], np.int32)
        longest = np.asarray(self._arrays.to_numpy(self._collectives.gather([sizes])[0])).max(axis=0)
        return put_back([self._pad(array, dim, int(target), pad_index, pad_first) for array, target in zip(chosen, longest, strict=True)])

    def _pad(self, array: Any, dim: int, target: int, pad_index: float, pad_first: bool) -> Any:
        shape = self._arrays.shape(array)
        missing = padding_after(shape, dim, target)
        if missing == 0:
            return array
        return self._arrays.pad(array, dim % len(shape), missing if pad_first else 0, 0 if pad_first else missing, pad_index)

    def gather_object(self, value: Any) -> list[Any]:
        """Picklable objects of all processes in rank order: lists are joined, anything else gives one entry for each process."""
        everything = self._collectives.gather_objects(value)
        if all(isinstance(each, list) for each in everything):
            return [item for each in everything for item in each]
        return everything

    def broadcast_object_list(self, values: list[Any], from_process: int = 0) -> list[Any]:
        """The list of one process on all; the argument is also filled in place, as scripts expect."""
        self._check_process(from_process)
        received = self._collectives.broadcast_objects(values, from_process)
        values[:] = received
        return values

    def concatenate(self, values: Sequence[Any], dim: int = 0) -> Any:
        """Structures of the same shape joined leaf by leaf along `dim`; leaves that are no arrays are taken from the first."""
        first, put_back = tree.select(values[0], self._arrays.is_array)
        columns = [tree.select(value, self._arrays.is_array)[0] for value in values]
        return put_back([self._arrays.concatenate([column[index] for column in columns], dim) for index in range(len(first))])

    def send_to_device(
        self, value: Any, device: Any = None, non_blocking: bool = False, skip_keys: str | Sequence[str] | None = None
    ) -> Any:
        """Arrays moved to `device` (this process's where `None`); what stands under `skip_keys` stays."""
        skipped = {skip_keys} if isinstance(skip_keys, str) else set(skip_keys or ())

        def move(node: Any) -> Any:
            if tree.is_container(node):
                return tree.rebuild(node, [child if key in skipped else move(child) for key, child in tree.children(node)])
            return self._arrays.to_device(node, device, non_blocking) if self._arrays.is_array(node) else node

        return move(value)

    def recursively_apply(
        self,
        function: Callable[..., Any],
        data: Any,
        *args: Any,
        test_type: Callable[[Any], bool] | None = None,
        error_on_other_type: bool = False,
        **kwargs: Any,
    ) -> Any:
        """`function(leaf, *args, **kwargs)` on every leaf for which `test_type` holds (arrays by default)."""
        accepts = test_type or self._arrays.is_array
        for path, leaf in tree.leaves_with_paths(data) if error_on_other_type else ():
            if not accepts(leaf):
                raise LeafTypeError(
                    f"{getattr(function, '__name__', 'function')}: the leaf at {tree.path_name(path)} is a {type(leaf).__name__}, not an array"
                )
        return tree.map_leaves(lambda leaf: function(leaf, *args, **kwargs) if accepts(leaf) else leaf, data)

    def _select(self, operation: str, value: Any, with_sizes: bool = True) -> tuple[list[Any], Callable[[list[Any]], Any]]:
        chosen, put_back = tree.select(value, self._arrays.is_array)
        if len(chosen) != sum(1 for _ in tree.leaves_with_paths(value)):
            self._refuse_other_leaves(operation, value)
        if self._debug:
            check_agreement(operation, signature(self._arrays, value, with_sizes), self._collectives, self._topology)
        return chosen, put_back

    def _refuse_other_leaves(self, operation: str, value: Any) -> None:
        for path, leaf in tree.leaves_with_paths(value):
            if not (leaf is None or isinstance(leaf, (str, bytes)) or self._arrays.is_array(leaf)):
                raise LeafTypeError(
                    f"{operation}: the leaf at {tree.path_name(path)} is a {type(leaf).__name__} ({leaf!r:.60}), expected an array; use gather_object for objects"
                )

    def _check_process(self, index: int) -> None:
        if not 0 <= index < self._topology.num_processes:
            raise ConfigurationError(f"from_process={index}: expected 0 to {self._topology.num_processes - 1}")
