"""`save_state` and `load_state`: every prepared and registered object, completely, or an error before anything has changed."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from xaccel.backend.arrays import Arrays
from xaccel.backend.collectives import Collectives
from xaccel.backend.precision import Precision
from xaccel.backend.state import StateAccess
from xaccel.checkpoint.coordination import on_first, together
from xaccel.checkpoint.layout import open_checkpoint
from xaccel.checkpoint.manifest import Manifest
from xaccel.checkpoint.object_state import ObjectState
from xaccel.checkpoint.plan import Section
from xaccel.checkpoint.reader import Checkpoint
from xaccel.checkpoint.retention import apply_limit, checkpoint_name, newest_checkpoint, next_iteration
from xaccel.checkpoint.values import decode, encode
from xaccel.checkpoint.writer import CheckpointWriter
from xaccel.config.project import ProjectConfiguration
from xaccel.errors import CheckpointMismatchError, ConfigurationError, UnsupportedError
from xaccel.prepared import Prepared
from xaccel.process.topology import ProcessTopology, ReplicaLayout
from xaccel.saving.hooks import Hooks, RemovableHandle
from xaccel.saving.model import parse_size, save_arrays, write_model
from xaccel.saving.objects import Differences, ObjectLoader, SavedObject, live_objects, model_stem
from xaccel.saving.report import LoadReport

_LIBRARIES = {"torch": ("torch",), "jax": ("jax", "flax", "optax")}


class RunCoordinator:
    """The run's collectives as writing together needs them."""

    def __init__(self, topology: ProcessTopology, collectives: Collectives):
        self.process_index = topology.process_index
        self.num_processes = topology.num_processes
        self.barrier = collectives.barrier
        self.gather_objects = collectives.gather_objects
        self.broadcast_objects = collectives.broadcast_objects


class StateManager:
    """The saving methods of one `Accelerator`.

    Args:
        state: sees live objects as canonical tensors.
        arrays: the framework's arrays.
        collectives: between the processes.
        topology: where this process stands.
        project: folders and retention.
        prepared: what to save.
        precision: has the loss scale.
        replicas: the data-parallel dimension, for the manifest.
        backend: name of the adapter.
        full_state_dict: a model's full tensors, for hooks.
        save_object: pickles an object in the framework's own way; raises where there is none.
    """

    def __init__(
        self,
        *,
        state: StateAccess,
        arrays: Arrays,
        collectives: Collectives,
        topology: ProcessTopology,
        project: ProjectConfiguration,
        prepared: Prepared,
        precision: Precision,
        replicas: ReplicaLayout,
        backend: str,
        full_state_dict: Callable[[Any], dict[str, Any]],
        save_object: Callable[[Any, str], None],
    ):
        self._state = state
        self._arrays = arrays
        self._topology = topology
        self._coordinator = RunCoordinator(topology, collectives)
        self._project = project
        self._prepared = prepared
        self._precision = precision
        self._replicas = replicas
        self._backend = backend
        self._full_state_dict = full_state_dict
        self._save_object = save_object
        self._save_hooks = Hooks()
        self._load_hooks = Hooks()

    # --- save_state

    def save_state(
        self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True, **save_model_func_kwargs: Any
    ) -> str:
        """Save every prepared and registered object, random states and positions, as one checkpoint; a collective call.

        Args:
            output_dir: folder of the checkpoint; with automatic naming `<project_dir>/checkpoints/checkpoint_<iteration>`.
            safe_serialization: checkpoints never hold a pickle, so only True is taken.
            save_model_func_kwargs: none are known.

        Returns:
            The checkpoint's folder. It is complete when this returns, and does not exist if this raises.

        Raises:
            CheckpointSpaceError: the disk is full; nothing is left behind.
            CheckpointError: on every process if it fails on any.
        """
        _refuse_options(safe_serialization, save_model_func_kwargs)
        with CheckpointWriter(self._target(output_dir), self._coordinator) as writer:
            objects = live_objects(self._state, self._prepared, self._models_to_save(writer.directory))
            rng = self._state.rng()
            sections = [Section(each.stem, each.state) for each in objects]
            sections.append(Section(_process_stem(self._topology.process_index), rng, scope="process"))
            scalars = together(self._coordinator, "describing the objects", lambda: self._scalars(objects, rng))
            writer.write(sections)
            written = writer.commit(self._manifest(scalars[0][0], [own for _, own in scalars]))
        self._after_save(output_dir is None)
        return str(written)

    def _models_to_save(self, directory: Path) -> list[Any]:
        """Run the hooks on the folder in which the checkpoint is made; a model whose weights a hook took out of the list is the hook's."""
        models = list(self._prepared.models)
        if not len(self._save_hooks):
            return models
        weights = [self._full_state_dict(model) for model in models]
        left = list(weights)
        together(self._coordinator, "running save hooks", lambda: self._save_hooks.run(list(models), left, str(directory)))
        return [model for model, own in zip(models, weights, strict=True) if any(own is other for other in left)]

    def _scalars(self, objects: Sequence[SavedObject], rng: ObjectState) -> tuple[dict[str, tuple[Any, ...]], Any]:
        groups = {
            group: tuple(self._encoded(each.state.scalars(), each.stem) for each in objects if each.group == group)
            for group in ("models", "optimizers", "custom")
        }
        return groups, self._encoded(rng.scalars(), "rng")

    def _target(self, output_dir: str | os.PathLike[str] | None) -> Path:
        if output_dir is not None and not self._project.automatic_checkpoint_naming:
            return Path(output_dir)
        if output_dir is not None:
            raise ConfigurationError(
                f"save_state({os.fspath(output_dir)!r}) with automatic_checkpoint_naming=True: the name is made; leave output_dir out"
            )
        folder = self._automatic_folder()
        self._project.iteration = on_first(
            self._coordinator, "naming the checkpoint", lambda: next_iteration(folder, self._project.iteration)
        )
        return folder / checkpoint_name(self._project.iteration)

    def _automatic_folder(self) -> Path:
        if not self._project.automatic_checkpoint_naming:
            raise ConfigurationError(
                "no folder given: pass one, or set ProjectConfiguration(automatic_checkpoint_naming=True, project_dir=…)"
            )
        if self._project.project_dir is None:
            raise ConfigurationError(
                "automatic_checkpoint_naming needs a project_dir: give the Accelerator project_dir, or the ProjectConfiguration one"
            )
        folder = Path(self._project.project_dir) / "checkpoints"
        on_first(self._coordinator, f"making {folder}", lambda: folder.mkdir(parents=True, exist_ok=True))
        return folder

    def _after_save(self, automatic: bool) -> None:
        if not automatic:
            return
        limit = self._project.total_limit
        if limit is not None:
            # Only after the commit, and by number: never fewer than `limit` complete ones while writing.
            folder = self._automatic_folder()
            on_first(self._coordinator, "removing old checkpoints", lambda: len(apply_limit(folder, limit)))
        self._project.iteration += 1

    def _manifest(self, groups: Mapping[str, tuple[Any, ...]], rng_scalars: Sequence[Any]) -> Manifest:
        loaders = [loader.state_dict() for loader in self._prepared.loaders]
        first = loaders[0] if loaders else {"epoch": 0, "samples": 0}
        return Manifest(
            xaccel_version=_version("xaccel") or "",
            backend={"name": self._backend, "versions": _versions(self._backend)},
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            step=_steps(groups["optimizers"]),
            epoch=first["epoch"],
            iteration=self._project.iteration,
            samples=first["samples"],
            topology={
                "processes": self._topology.num_processes,
                "replicas": self._replicas.num_replicas,
                "devices": self._topology.num_devices,
            },
            schedulers=tuple(self._encoded(scheduler.state_dict(), "scheduler") for scheduler in self._prepared.schedulers),
            dataloaders=tuple(loaders),
            scaler=self._encoded(self._precision.state_dict(), "scaler"),
            rng={"backend": self._backend, "num_processes": self._topology.num_processes, "processes": list(rng_scalars)},
            models=groups["models"],
            optimizers=groups["optimizers"],
            custom=groups["custom"],
        )

    def _encoded(self, value: Any, where: str) -> Any:
        return encode(value, where, self._as_numpy)

    def _as_numpy(self, value: Any) -> Any:
        return self._arrays.to_numpy(value) if self._arrays.is_array(value) else value

    # --- load_state

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: dict[str, Any] | None = None,
        strict: bool = True,
        **load_model_func_kwargs: Any,
    ) -> LoadReport:
        """Restore every prepared and registered object from a checkpoint of either framework and any number of processes; a collective call.

        Loaders go on with the batch after the last one that was given out.

        Args:
            input_dir: the checkpoint; with automatic naming, where not given, the newest complete one.
            load_kwargs, load_model_func_kwargs: none are known.
            strict: raise if anything is missing, left over or of another shape; otherwise load the rest and report it.

        Returns:
            What was left out, and what cannot cross between the two runs.

        Raises:
            CheckpointNotFoundError: there is no complete checkpoint.
            CheckpointMismatchError: lists everything that does not fit, on every process; nothing has been changed.
            CorruptCheckpointError: a file is not what the manifest says.
        """
        _refuse_options(True, {**(load_kwargs or {}), **load_model_func_kwargs})
        path = self._source(input_dir)
        models = list(self._prepared.models)
        together(self._coordinator, "running load hooks", lambda: self._load_hooks.run(models, str(path)))
        opened: list[Checkpoint] = []
        together(self._coordinator, f"opening {path}", lambda: opened.append(open_checkpoint(path, strict=strict)))
        with opened[0] as checkpoint:
            for fault in checkpoint.damaged.values():
                warnings.warn(f"{fault}; what it held is left as it was (strict=False)", stacklevel=3)
            loaders = [ObjectLoader(each, checkpoint) for each in live_objects(self._state, self._prepared, models)]
            differences = self._compare(path, checkpoint, loaders, strict)
            # Together: bytes that turn out to be corrupt on one process stop all of them.
            lost_everywhere = together(self._coordinator, f"loading {path}", lambda: self._load(checkpoint, loaders))
            lost = [*differences.not_carried, *lost_everywhere[self._topology.process_index]]
        self._continue_numbering(path, input_dir is None)
        if lost:
            warnings.warn(f"{path}: not carried over: " + "; ".join(lost), stacklevel=3)
        return LoadReport(
            path=str(path),
            missing=tuple(differences.missing),
            unexpected=tuple(differences.unexpected),
            mismatched=tuple(differences.mismatched),
            not_carried=tuple(lost),
        )

    def _source(self, input_dir: str | os.PathLike[str] | None) -> Path:
        if input_dir is not None:
            return Path(input_dir)
        folder = self._automatic_folder()
        return Path(on_first(self._coordinator, f"finding the newest checkpoint in {folder}", lambda: str(newest_checkpoint(folder))))

    def _compare(self, path: Path, checkpoint: Checkpoint, loaders: Sequence[ObjectLoader], strict: bool) -> Differences:
        """Compare on every process; raise everywhere if it is strict and anything differs anywhere."""

        def compare() -> Differences:
            found = Differences()
            for loader in loaders:
                loader.compare(found)
            live = {loader.saved.stem for loader in loaders} | {model_stem(index) for index in range(len(self._prepared.models))}
            found.unexpected += [
                f"{stem}: the whole object" for stem in checkpoint.sections if stem not in live and not stem.startswith("process-")
            ]
            self._compare_counts(checkpoint.manifest, found)
            return found

        everywhere = together(self._coordinator, f"comparing {path}", compare)
        if strict and any(everywhere):
            found = Differences.union(everywhere)
            raise CheckpointMismatchError(
                f"{path} does not fit the prepared objects; nothing was changed (strict=False loads the rest)",
                missing=found.missing,
                unexpected=found.unexpected,
                mismatched=found.mismatched,
            )
        return everywhere[self._topology.process_index]

    def _compare_counts(self, manifest: Manifest, found: Differences) -> None:
        for word, stored, live in (
            ("scheduler", manifest.schedulers, self._prepared.schedulers),
            ("dataloader", manifest.dataloaders, self._prepared.loaders),
        ):
            found.missing += [f"{word}_{index}" for index in range(len(stored), len(live))]
            found.unexpected += [f"{word}_{index}" for index in range(len(live), len(stored))]

    def _load(self, checkpoint: Checkpoint, loaders: Sequence[ObjectLoader]) -> list[str]:
        manifest, lost = checkpoint.manifest, []
        for loader in loaders:
            lost += loader.load(lambda value: decode(value, self._from_numpy))
        for scheduler, state in zip(self._prepared.schedulers, manifest.schedulers, strict=False):
            scheduler.load_state_dict(decode(state, self._from_numpy))
        for prepared, state in zip(self._prepared.loaders, manifest.dataloaders, strict=False):
            prepared.load_state_dict(dict(state))
        self._precision.load_state_dict(decode(dict(manifest.scaler), self._from_numpy))
        return lost + self._load_rng(checkpoint)

    def _from_numpy(self, values: Any) -> Any:
        return self._arrays.from_numpy(values)

    def _load_rng(self, checkpoint: Checkpoint) -> list[str]:
        rng = checkpoint.manifest.rng
        stem = _process_stem(self._topology.process_index)
        if not rng:
            return ["random states: the checkpoint has none"]
        if rng["backend"] != self._backend or rng["num_processes"] != self._topology.num_processes:
            return [f"random states of {rng['num_processes']} {rng['backend']} process(es)"]
        if any(file in checkpoint.damaged for file in checkpoint.manifest.sections[stem]["files"]):
            return [f"random states: {stem} is damaged"]
        section = checkpoint.section(stem)
        scalars = decode(rng["processes"][self._topology.process_index], self._from_numpy)
        return self._state.rng().load(lambda name, bounds: section[name].read(bounds), scalars)

    def _continue_numbering(self, path: Path, automatic: bool) -> None:
        if automatic:
            self._project.iteration = int(path.name.rpartition("_")[2]) + 1

    # --- the rest

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save and restore these too.

        Args:
            objects: each has `state_dict()` and `load_state_dict(state)`; states are nested numbers, texts and arrays.

        Raises:
            ConfigurationError: an object lacks one of the two; the message names all such.
        """
        wrong = [each for each in objects if not all(callable(getattr(each, name, None)) for name in ("state_dict", "load_state_dict"))]
        if wrong:
            raise ConfigurationError(
                f"register_for_checkpointing: without state_dict() and load_state_dict(): {', '.join(type(each).__name__ for each in wrong)}"
            )
        self._prepared.registered.extend(objects)

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call `hook(models, weights, output_dir)` before each save.

        `weights` are the models' full state dicts, one a model; a hook that takes one out of the list saves that model itself.
        `output_dir` is the folder in which the checkpoint is being made: files that a hook writes there become part of it.
        """
        return self._save_hooks.register(hook)

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Call `hook(models, input_dir)` before each load; a model that it takes out of the list is not loaded."""
        return self._load_hooks.register(hook)

    def save_model(
        self, model: Any, save_directory: str | os.PathLike[str], max_shard_size: int | str = "10GB", safe_serialization: bool = True
    ) -> None:
        """Write a model's weights alone, as transformers reads them: `model.safetensors`, or shards and their index; a collective call.

        Args:
            max_shard_size: bytes, or a text such as "5MB" or "2GiB"; a greater tensor gets a file of its own.
            safe_serialization: only True is taken.
        """
        _refuse_options(safe_serialization, {})
        write_model(self._state.model(model), Path(save_directory), parse_size(max_shard_size), self._coordinator)

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Write one object on the main process.

        Args:
            obj: with `safe_serialization` a dict of arrays; else anything that the framework's own pickle takes.
            f: path of the file.
            safe_serialization: as a safetensors file.
        """
        if not self._topology.is_main_process:
            return
        if safe_serialization:
            save_arrays({name: self._as_numpy(value) for name, value in obj.items()}, Path(f))
        else:
            self._save_object(obj, os.fspath(f))


def _process_stem(index: int) -> str:
    return f"process-{index:05d}"


def _steps(optimizers: Sequence[Any]) -> int:
    """Optimizer steps taken, from the first optimizer that counts them."""
    return max((count for state in optimizers[:1] for count in dict(decode(state.get("steps", {}))).values()), default=0)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _versions(backend: str) -> dict[str, str]:
    found = {name: _version(name) for name in ("numpy", *_LIBRARIES.get(backend, ()))}
    return {"python": platform.python_version(), **{name: value for name, value in found.items() if value is not None}}


def _refuse_options(safe_serialization: bool, options: Mapping[str, Any]) -> None:
    if not safe_serialization:
        raise UnsupportedError("safe_serialization=False: checkpoints never hold a pickle; leave the argument out")
    if options:
        raise ConfigurationError(f"unknown options: {', '.join(options)}")
