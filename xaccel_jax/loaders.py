"""Loaders divided over the replicas of a mesh: `ArrayLoader`s by plan, torch's `DataLoader`s over map-style data by the same plan, any other
iterable batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from xaccel.data.batches import take_rows
from xaccel.data.loader import LoaderContext, PlannedLoader
from xaccel.data.source import ArrayLoader, BatchStream, MapSource
from xaccel.errors import UnsupportedError
from xaccel.preparation.plan import Item, Role

_LOADER_MODULES = ("torch", "torchdata", "grain", "datasets", "tensorflow", "tensorflow_datasets")


class JaxLoaderPreparer:
    """Claims `ArrayLoader`s, generators and other one-pass iterators, the loaders of known libraries, and anything else that iterates over batches."""

    role: Role = "loader"

    def claims(self, value: Any) -> bool:
        if isinstance(value, (ArrayLoader, Iterator)):
            return True
        if isinstance(value, (str, bytes, dict, list, tuple, set, jax.Array, np.ndarray)):
            return False
        return isinstance(value, Iterable)

    def prepare(self, item: Item, context: Any) -> PlannedLoader:
        return PlannedLoader(source_of(item.current, context.loaders), context.loaders)


def source_of(loader: Any, context: LoaderContext) -> Any:
    """The source for a loader, by what it reads.

    Raises:
        UnsupportedError: `even_batches=False` over several replicas without `drop_last`: global arrays have equal shards.
    """
    source = MapSource(_planned(loader), context) if _is_planned(loader) else BatchStream(loader, context, equal_rows=True)
    if not context.config.even_batches and context.replicas.num_replicas > 1 and not getattr(loader, "drop_last", False):
        raise UnsupportedError("even_batches=False: the rows of a global array divide evenly over the replicas; use drop_last=True, or even_batches=True")
    return source


def _is_planned(loader: Any) -> bool:
    return isinstance(loader, ArrayLoader) or _is_standard_torch_loader(loader)


def _planned(loader: Any) -> ArrayLoader:
    return loader if isinstance(loader, ArrayLoader) else _TorchDataset(loader)


def _is_standard_torch_loader(loader: Any) -> bool:
    """Whether it is a torch `DataLoader` that reads a map-style dataset in order or shuffled, which the core's plan can do."""
    if type(loader).__module__.partition(".")[0] != "torch":
        return False
    samplers = (type(getattr(loader, "sampler", None)).__name__, type(getattr(loader, "batch_sampler", None)).__name__)
    return samplers[0] in ("RandomSampler", "SequentialSampler") and samplers[1] == "BatchSampler"


class _TorchDataset(ArrayLoader):
    """A torch `DataLoader`'s dataset read by the core's plan, with its own `collate_fn`."""

    def __init__(self, loader: Any):
        self.loader = loader
        self.num_samples = len(loader.dataset)
        self.batch_size = loader.batch_size
        self.shuffle = type(loader.sampler).__name__ == "RandomSampler"
        self.drop_last = loader.drop_last
        self.dataset = _Rows(loader.dataset, loader.collate_fn)


class _Rows:
    """Looks like one array of samples: indexing by many rows reads and collates them."""

    def __init__(self, dataset: Any, collate: Any):
        self._dataset = dataset
        self._collate = collate
        self.shape = (len(dataset),)

    def __getitem__(self, rows: Any) -> Any:
        return self._collate([self._dataset[int(row)] for row in rows])


__all__ = ["JaxLoaderPreparer", "source_of", "take_rows"]
