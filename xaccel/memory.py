"""Memory: find a batch size that fits, and let go of objects."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

from xaccel.errors import ConfigurationError

_OUT_OF_MEMORY_TYPES = frozenset({"OutOfMemoryError"})
_OUT_OF_MEMORY_WORDS = ("out of memory", "RESOURCE_EXHAUSTED", "CUDNN_STATUS_NOT_SUPPORTED", "DefaultCPUAllocator: can't allocate memory")
"""How torch (CUDA, cuDNN, CPU) and XLA say that memory ran out; recognised by words, so that no framework is imported."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that device or host memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ in _OUT_OF_MEMORY_TYPES:
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _OUT_OF_MEMORY_WORDS)


def release_memory(*objects: Any) -> list[None]:
    """Drop the references passed, and collect garbage.

    Returns:
        As many `None`s as objects: `a, b = release_memory(a, b)` drops the caller's references too.
    """
    count = len(objects)
    del objects
    gc.collect()
    return [None] * count


def find_executable_batch_size(
    function: Callable[..., Any] | None = None, starting_batch_size: int = 128, reduce_batch_size_fn: Callable[[int], int] | None = None
) -> Any:
    """Decorator: call `function(batch_size, *args, **kwargs)`, with a smaller batch size each time memory runs out.

    Args:
        function: takes the batch size as its first argument.
        starting_batch_size: the first to try.
        reduce_batch_size_fn: the next size from the last one; nine tenths of it by default.

    Raises:
        ConfigurationError: the caller passed a batch size itself, or no size above zero fits.

    >>> @find_executable_batch_size(starting_batch_size=4, reduce_batch_size_fn=lambda size: size // 2)
    ... def train(batch_size):
    ...     if batch_size > 1:
    ...         raise MemoryError
    ...     return batch_size
    >>> train()
    1
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size, starting_batch_size=starting_batch_size, reduce_batch_size_fn=reduce_batch_size_fn
        )
    inner: Callable[..., Any] = function
    reduce_size = reduce_batch_size_fn or (lambda size: int(size * 0.9))

    @functools.wraps(inner)
    def attempt(*args: Any, **kwargs: Any) -> Any:
        _check_arguments(inner, args)
        size = starting_batch_size
        while size > 0:
            try:
                return inner(size, *args, **kwargs)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the handler, so that the traceback no longer holds the frames' arrays.
            gc.collect()
            size = reduce_size(size)
        raise ConfigurationError(f"{inner.__name__}: no batch size from {starting_batch_size} down to 1 fits into memory")

    return attempt


def _check_arguments(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    names = list(inspect.signature(function).parameters)
    if not names:
        raise ConfigurationError(f"{function.__name__}() must take the batch size as its first argument")
    if len(args) > len(names) - 1 and not any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function).parameters.values()):
        raise ConfigurationError(f"{function.__name__} gets its {names[0]!r} from find_executable_batch_size: leave it out of the call")
