"""What a tracker answers. A new one is one file with one class."""

from __future__ import annotations

from typing import Any, ClassVar

from xaccel.errors import ConfigurationError


class GeneralTracker:
    """Base of trackers, built in and the user's own.

    A subclass sets `name` and `requires_logging_directory`, and gives `tracker`, `store_init_configuration` and `log`.

    Attributes:
        name: how it is asked for.
        requires_logging_directory: whether it needs `logging_dir`.
        main_process_only: whether the other processes get an inert tracker instead.
    """

    name: ClassVar[str] = "inert"
    requires_logging_directory: ClassVar[bool] = False
    main_process_only: bool = True

    def start(self) -> None:
        """Begin the run; called once by `init_trackers`, on the processes that track."""

    @property
    def tracker(self) -> Any:
        """The library's own run object; `None` for an inert tracker."""
        return None

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the run's configuration; an inert tracker keeps nothing, by design."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record values at a step; an inert tracker records nothing, by design."""

    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record arrays of images `(n, height, width, channels)`; an inert tracker records nothing, by design."""

    def finish(self) -> None:
        """Flush and close."""


class InertTracker(GeneralTracker):
    """Stands in for a tracker off the main process: takes every call and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _do_nothing


def _do_nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, keys joined by "/".

    >>> flatten({"optimizer": {"lr": 0.1}, "seed": 1})
    {'optimizer/lr': 0.1, 'seed': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}/"))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def as_number(name: str, value: Any) -> Any:
    """A 0-d array, a tensor of one element or a lazy loss as a Python number; numbers, strings and containers as they are.

    Raises:
        ConfigurationError: an array of several elements; the message names it.
    """
    item = getattr(value, "item", None)
    if not callable(item):
        return value
    try:
        return item()
    except (ValueError, RuntimeError) as error:
        raise ConfigurationError(
            f"log({{{name!r}: …}}): expected a number or an array of one element, got shape {tuple(value.shape)}"
        ) from error
