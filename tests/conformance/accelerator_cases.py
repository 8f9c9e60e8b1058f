"""The rules of training, as functions that any adapter's `Accelerator` runs. Only the toy model is written twice."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import numpy as np

from xaccel import Accelerator, ArrayLoader, DataLoaderConfiguration, GradientAccumulationPlugin, PartialState


def toy(backend: str, accelerator: Accelerator, rate: float = 1.0) -> tuple[Any, Any]:
    """w·x with w = 0, and plain SGD; prepared."""
    return (_torch_toy if backend == "torch" else _jax_toy)(accelerator, rate)


def _torch_toy(accelerator: Accelerator, rate: float) -> tuple[Any, Any]:
    import torch

    model: Any = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))


def _jax_toy(accelerator: Accelerator, rate: float) -> tuple[Any, Any]:
    import jax
    import optax
    from flax import nnx

    model = nnx.Linear(1, 1, use_bias=False, kernel_init=jax.nn.initializers.zeros, rngs=nnx.Rngs(0))
    return accelerator.prepare(model, optax.inject_hyperparams(optax.sgd)(learning_rate=rate))


def mean_loss(model: Any, batch: Any) -> Any:
    return model(batch).mean()


def sum_loss(model: Any, batch: Any) -> Any:
    return model(batch).sum()


def weight(accelerator: Accelerator, model: Any) -> float:
    return float(np.asarray(accelerator.get_state_dict(model)["weight"])[0, 0])


def make(backend: str, **options: Any) -> Accelerator:
    config = DataLoaderConfiguration(split_batches=True, data_seed=7)
    return Accelerator(backend=backend, cpu=True, **{"dataloader_config": config, **options})


def column(values: Any) -> np.ndarray:
    return np.asarray(values, np.float32)[:, None]


def counts_are_consistent(backend: str) -> dict[str, Any]:
    accelerator = make(backend)
    state = PartialState()
    assert (state.num_processes, state.process_index) == (accelerator.num_processes, accelerator.process_index)
    assert accelerator.num_replicas % accelerator.num_processes == 0
    everyone = accelerator.gather(np.array([accelerator.process_index]))
    assert np.asarray(everyone).tolist() == list(range(accelerator.num_processes))
    assert accelerator.is_main_process == (accelerator.process_index == 0)
    return {"mixed_precision": accelerator.mixed_precision, "sync": accelerator.sync_gradients}


def metrics_are_exactly_the_dataset(backend: str) -> list[list[int]]:
    """Case 5: every sample once, in order, for lengths that do not divide; the kept ones with `drop_last`."""
    accelerator = make(backend)
    found = []
    for count in (9, 11, 16, 3):
        for drop_last in (False, True):
            loader = accelerator.prepare(ArrayLoader({"id": np.arange(count)}, batch_size=8, drop_last=drop_last))
            seen: list[int] = []
            for batch in loader:
                seen += np.asarray(accelerator.gather_for_metrics(batch["id"])).tolist()
            found.append(seen)
    return found


def a_validation_loop_left_by_break_loses_no_window(backend: str) -> list[int]:
    """Case C-39: 10 batches, windows of 4, after batch 2 a validation loop that is left: steps after 4, 8 and 10."""
    accelerator = make(backend, gradient_accumulation_steps=4)
    model, optimizer = toy(backend, accelerator)
    train, valid = accelerator.prepare(ArrayLoader(column(np.ones(80)), batch_size=8), ArrayLoader(column(np.ones(24)), batch_size=8))
    steps = []
    for index, batch in enumerate(train, 1):
        with accelerator.accumulate(model):
            accelerator.backward(mean_loss, batch)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            steps.append(index)
        if index == 2:
            for _ in valid:
                break
    return steps


def carrying_over_when_the_loader_does_not_close_windows(backend: str) -> list[int]:
    """Case 13 with `sync_with_dataloader=False`."""
    accelerator = make(backend, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False))
    model, optimizer = toy(backend, accelerator)
    loader = accelerator.prepare(ArrayLoader(column(np.ones(40)), batch_size=8))
    steps = []
    for index, batch in enumerate([*loader, *loader], 1):
        with accelerator.accumulate(model):
            accelerator.backward(mean_loss, batch)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            steps.append(index)
    return steps


def accumulation_equals_the_large_batch(backend: str) -> list[float]:
    """Case C-42: windows of 2 with half the batch against one large batch: the same weights."""
    values = column(np.arange(64))
    found = []
    for steps in (1, 2):
        accelerator = make(backend, gradient_accumulation_steps=steps)
        model, optimizer = toy(backend, accelerator, rate=0.01)
        loader = accelerator.prepare(ArrayLoader(values, batch_size=16 // steps))
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(mean_loss, batch)
                optimizer.step()
                optimizer.zero_grad()
        found.append(weight(accelerator, model))
        accelerator.free_memory()
    return found


def token_weights_are_exact(backend: str) -> float:
    """Case C-41's kind: micro-batches with unequal numbers of valid tokens: the mean over all tokens."""
    accelerator = make(backend, gradient_accumulation_steps=2)
    model, optimizer = toy(backend, accelerator)
    loader = accelerator.prepare(ArrayLoader({"x": column(np.arange(16)), "real": column(np.arange(16) % 3 > 0)}, batch_size=8))
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(sum_loss, batch["x"] * batch["real"], num_items=batch["real"].sum())
            optimizer.step()
            optimizer.zero_grad()
    return weight(accelerator, model)


def clipping_sees_the_whole_gradient(backend: str) -> list[float]:
    accelerator = make(backend)
    model, optimizer = toy(backend, accelerator)
    loader = accelerator.prepare(ArrayLoader(column(np.arange(8)), batch_size=8))
    norms = []
    for batch in loader:
        accelerator.backward(mean_loss, batch)
        norms.append(accelerator.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
    return [*(float(norm) for norm in norms), weight(accelerator, model)]


def resume_in_the_middle_is_the_uninterrupted_run(backend: str) -> bool:
    """Case C-81: shuffled, saved after round 3 of epoch 1, loaded into fresh objects: the rest of epoch 1 and all of epoch 2."""
    values = {"id": np.arange(64)}
    accelerator = make(backend)
    folder = _from_main(accelerator, tempfile.mkdtemp() if accelerator.is_main_process else "")
    loader = accelerator.prepare(ArrayLoader(values, batch_size=8, shuffle=True))
    seen: list[list[int]] = []
    for epoch in range(3):
        for index, batch in enumerate(loader):
            seen.append(np.asarray(accelerator.gather(batch["id"])).tolist())
            if (epoch, index) == (1, 2):
                accelerator.save_state(f"{folder}/middle")
    again = make(backend)
    fresh = again.prepare(ArrayLoader(values, batch_size=8, shuffle=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.load_state(f"{folder}/middle")
    rest: list[list[int]] = []
    for _ in range(2):
        rest += [np.asarray(again.gather(batch["id"])).tolist() for batch in fresh]
    return rest == seen[8 + 3 :]


def _from_main(accelerator: Accelerator, value: str) -> str:
    from xaccel.utils import broadcast_object_list

    return broadcast_object_list([value])[0]


def a_trigger_of_one_process_is_seen_by_all(backend: str) -> list[bool]:
    accelerator = make(backend)
    found = [accelerator.check_trigger()]
    if accelerator.is_last_process:
        accelerator.set_trigger()
    return [*found, accelerator.check_trigger(), accelerator.check_trigger()]


def the_scheduler_follows_real_steps(backend: str) -> list[float]:
    """Rates over windows of 2 with a schedule of 1, 1/2, 1/3, …: moved once for each real step under `split_batches`."""
    accelerator = make(backend, gradient_accumulation_steps=2)
    model, optimizer = toy(backend, accelerator)
    scheduler = accelerator.prepare_scheduler(_schedule(backend, optimizer))
    loader = accelerator.prepare(ArrayLoader(column(np.ones(48)), batch_size=8))
    rates = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(mean_loss, batch)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        rates.append(scheduler.get_last_lr()[0])
    return [round(rate, 6) for rate in rates]


def _schedule(backend: str, optimizer: Any) -> Any:
    def schedule(step: int) -> float:
        return 1.0 / (1 + step)

    if backend == "jax":
        return schedule
    import torch

    return torch.optim.lr_scheduler.LambdaLR(optimizer.optimizer, schedule)


def registered_objects_come_back(backend: str) -> bool:
    class Counter:
        def __init__(self) -> None:
            self.state: dict[str, Any] = {"n": 0, "history": [], "mean": np.zeros(3, np.float32), 7: "seven"}

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.state = state

    accelerator = make(backend)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    counter.state = {"n": 5, "history": [1.5, float("inf")], "mean": np.arange(3, dtype=np.float32), 7: "seven"}
    folder = _from_main(accelerator, tempfile.mkdtemp() if accelerator.is_main_process else "")
    accelerator.save_state(f"{folder}/counter")
    counter.state = {"n": 0, "history": [], "mean": np.zeros(3, np.float32), 7: ""}
    accelerator.load_state(f"{folder}/counter")
    mean = np.asarray(counter.state.pop("mean")).tolist()
    return counter.state == {"n": 5, "history": [1.5, float("inf")], 7: "seven"} and mean == [0.0, 1.0, 2.0]


def a_checkpoint_that_does_not_fit_changes_nothing(backend: str) -> bool:
    from xaccel.errors import CheckpointMismatchError

    accelerator = make(backend)
    model, _ = toy(backend, accelerator)
    folder = _from_main(accelerator, tempfile.mkdtemp() if accelerator.is_main_process else "")
    accelerator.save_state(f"{folder}/one")
    again = make(backend)
    model, optimizer = toy(backend, again)
    again.prepare(ArrayLoader(column(np.ones(8)), batch_size=8))
    again.backward(mean_loss, next(iter(again.prepare(ArrayLoader(column(np.ones(8)), batch_size=8)))))
    optimizer.step()
    before = weight(again, model)
    try:
        again.load_state(f"{folder}/one")
    except CheckpointMismatchError as error:
        return "dataloader_0" in str(error) and weight(again, model) == before
    return False
