"""Python values in JSON and back, without loss: tuples, integer keys, infinities, bytes, sets, counters and small arrays.

JSON has none of these, yet schedulers and registered objects hold them (`best = inf`, `milestones = Counter({30: 1})`, `betas = (0.9, 0.999)`).
Each becomes an object with one key that begins with `$`. Nothing is ever executed on reading: the kinds are the closed list below.
"""

from __future__ import annotations

import base64
import collections
import math
from collections.abc import Callable, Mapping
from typing import Any

from xaccel.errors import ConfigurationError, CorruptCheckpointError

AsNumpy = Callable[[Any], Any]
"""A framework's array as a NumPy array; anything else unchanged."""


def encode(value: Any, where: str = "value", as_numpy: AsNumpy = lambda value: value) -> Any:
    """`value` as JSON values.

    Args:
        where: name of the value, for the message.
        as_numpy: turns a framework's arrays into NumPy's.

    >>> encode({"betas": (0.9, 0.999), 3: float("inf")})
    {'$dict': [['betas', {'$tuple': [0.9, 0.999]}], [3, {'$float': 'inf'}]]}

    Raises:
        ConfigurationError: naming the part that is none of the kinds (a function, an object of a class).
    """
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, (int, float)):
        return _encode_number(value)
    if isinstance(value, Mapping):
        return _encode_mapping(value, where, as_numpy)
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return _encode_sequence(value, where, as_numpy)
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    return _encode_array(as_numpy(value), where)


def _encode_number(value: float) -> Any:
    if isinstance(value, int):
        return int(value)  # IntEnum and the like
    return float(value) if math.isfinite(value) else {"$float": repr(float(value))}


def _encode_mapping(value: Mapping[Any, Any], where: str, as_numpy: AsNumpy) -> Any:
    items = [(key, encode(item, f"{where}[{key!r}]", as_numpy)) for key, item in value.items()]
    if isinstance(value, collections.Counter):
        return {"$counter": [[encode(key, where), item] for key, item in items]}
    if all(type(key) is str and not key.startswith("$") for key, _ in items):
        return dict(items)
    return {"$dict": [[encode(key, f"a key of {where}"), item] for key, item in items]}


def _encode_sequence(value: Any, where: str, as_numpy: AsNumpy) -> Any:
    if isinstance(value, (set, frozenset)):
        return {"$set": [encode(item, where, as_numpy) for item in sorted(value, key=repr)]}
    items = [encode(item, f"{where}[{index}]", as_numpy) for index, item in enumerate(value)]
    return {"$tuple": items} if isinstance(value, tuple) else items


def _encode_array(value: Any, where: str) -> Any:
    import numpy as np

    from xaccel.checkpoint.safetensors_file import dtype_tag

    if isinstance(value, np.generic | np.ndarray):
        array = np.asarray(value)
        data = base64.b64encode(array.tobytes()).decode("ascii")
        return {"$array": {"dtype": dtype_tag(array.dtype.name), "shape": list(array.shape), "data": data}}
    raise ConfigurationError(
        f"{where} is a {type(value).__name__}, which a checkpoint does not hold: state must be made of numbers, texts, arrays, lists, tuples, sets and "
        "dicts. Return such values from state_dict()"
    )


def decode(value: Any, from_numpy: AsNumpy = lambda value: value) -> Any:
    """The inverse of `encode`; a deque comes back as a list, and arrays pass through `from_numpy`.

    Raises:
        CorruptCheckpointError: an unknown kind, or data that does not fit its kind.
    """
    if isinstance(value, list):
        return [decode(item, from_numpy) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and next(iter(value)).startswith("$"):
        ((kind, content),) = value.items()
        try:
            return _DECODERS[kind](content, from_numpy)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptCheckpointError(f"checkpoint value of kind {kind!r} cannot be read: {error!r}") from error
    return {key: decode(item, from_numpy) for key, item in value.items()}


def _decode_array(content: Mapping[str, Any], from_numpy: AsNumpy) -> Any:
    import numpy as np

    from xaccel.checkpoint.safetensors_file import numpy_dtype

    data = base64.b64decode(content["data"], validate=True)
    # A copy: the bytes object is read-only, and the caller owns its state.
    return from_numpy(np.frombuffer(data, numpy_dtype(content["dtype"])).reshape(content["shape"]).copy())


def _pairs(content: Any, from_numpy: AsNumpy) -> list[tuple[Any, Any]]:
    return [(decode(key), decode(item, from_numpy)) for key, item in content]


_DECODERS: Mapping[str, Callable[[Any, AsNumpy], Any]] = {
    "$float": lambda content, _: float(content),
    "$tuple": lambda content, from_numpy: tuple(decode(content, from_numpy)),
    "$set": lambda content, from_numpy: set(decode(content, from_numpy)),
    "$bytes": lambda content, _: base64.b64decode(content, validate=True),
    "$dict": lambda content, from_numpy: dict(_pairs(content, from_numpy)),
    "$counter": lambda content, from_numpy: collections.Counter(dict(_pairs(content, from_numpy))),
    "$array": _decode_array,
}
