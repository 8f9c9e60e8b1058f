"""Cases that run on each rank of a torch run; the tests beside compare them with one process."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from xaccel import Accelerator
from xaccel.process.topology import set_current_topology


def accelerator_of(**options: Any) -> Any:
    """An `Accelerator` on the CPU; a case before it in the same process left nothing behind."""
    set_current_topology(None)
    return Accelerator(backend="torch", cpu=True, **options)


def rows(num_rows: int, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """The same inputs `(num_rows, width)` and labels `(num_rows,)` everywhere."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(num_rows, width, generator=generator, dtype=torch.float64), torch.randint(0, 3, (num_rows,), generator=generator)


def network(norm: bool = False) -> torch.nn.Module:
    """The same small network everywhere, float64."""
    torch.manual_seed(5)
    middle = [torch.nn.BatchNorm1d(8)] if norm else []
    return torch.nn.Sequential(torch.nn.Linear(6, 8), *middle, torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()


def weights(accelerator: Any, model: Any) -> dict[str, list[Any]]:
    """The unwrapped model's tensors as lists."""
    return {name: tensor.tolist() for name, tensor in accelerator.unwrap_model(model).state_dict().items()}


def shares(parts: list[list[int]], rank: int) -> list[int]:
    """Which rows a rank takes in each micro-step, as sizes per rank: `parts[micro_step][rank]`, as (start, stop)."""
    bounds, start = [], 0
    for sizes in parts:
        mine = start + sum(sizes[:rank])
        bounds.append((mine, mine + sizes[rank]))
        start += sum(sizes)
    return bounds  # type: ignore[return-value]


def train(parts: list[list[int]], steps: int, num_steps: int, with_items: bool, options: dict[str, Any], norm: bool = False) -> Any:
    """`steps` optimizer steps over the same rows; `parts[micro_step][rank]` rows each. Returns the weights."""
    accelerator = accelerator_of(gradient_accumulation_steps=num_steps, **options)
    model = network(norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    x, y = rows(sum(map(sum, parts)))
    for _ in range(steps):
        for start, stop in shares(parts, accelerator.process_index):  # type: ignore[misc]
            with accelerator.accumulate(model):
                losses = torch.nn.functional.cross_entropy(model(x[start:stop]), y[start:stop], reduction="sum" if with_items else "mean")
                accelerator.backward(losses, **({"num_items": stop - start} if with_items else {}))
                optimizer.step()
                optimizer.zero_grad()
    found = weights(accelerator, model)
    accelerator.free_memory()
    return found


def weighted(with_items: bool) -> float:
    """Case C-41 on two ranks."""
    accelerator = accelerator_of(gradient_accumulation_steps=2)
    model = torch.nn.Linear(1, 1, bias=False)
    model = accelerator.prepare(model)
    optimizer = accelerator.prepare(torch.optim.SGD(accelerator.unwrap_model(model).parameters(), lr=0.0))
    data = [[[1.0, 1.0], [2.0] * 6], [[3.0] * 5, [4.0] * 3]][accelerator.process_index]
    for x in data:
        with accelerator.accumulate(model):
            losses = model(torch.tensor(x)[:, None])
            if with_items:
                accelerator.backward(losses.sum(), num_items=len(x))
            else:
                accelerator.backward(losses.mean())
    assert isinstance(optimizer, torch.optim.Optimizer)
    return float(accelerator.unwrap_model(model).weight.grad)


def count_reductions() -> int:
    """Case C-46: gradient reductions of 8 micro-batches with windows of 4, one bucket."""
    accelerator = accelerator_of(gradient_accumulation_steps=4)
    model = accelerator.prepare(network())
    count = 0

    def hook(state, bucket):  # type: ignore[no-untyped-def] # torch reads the annotations, and takes none or its own
        nonlocal count
        count += 1
        tensor = bucket.buffer()
        return dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value()[0] / dist.get_world_size())

    model.register_comm_hook(None, hook)
    x, _ = rows(4)
    for _ in range(8):
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
    return count


def gradients_after(kind: str) -> list[float]:
    """Rank-dependent gradients: local under `no_sync`, reduced otherwise or after `trigger_sync_in_backward`."""
    accelerator = accelerator_of()
    model = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
    x = torch.full((1, 1), float(accelerator.process_index + 1))
    if kind == "sync":
        accelerator.backward(model(x).sum())
    elif kind == "no_sync":
        with accelerator.no_sync(model):
            accelerator.backward(model(x).sum())
    else:
        with accelerator.no_sync(model):
            loss = model(x).sum()
            accelerator.backward(model(x).sum())
        accelerator.trigger_sync_in_backward(model)
        accelerator.backward(loss)
    return accelerator.unwrap_model(model).weight.grad.flatten().tolist()


def uneven_inputs() -> list[float]:
    """Rank 0 has one batch, rank 1 three; `join_uneven_inputs` lets both finish."""
    accelerator = accelerator_of()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    with accelerator.join_uneven_inputs([model]):
        for _ in range(1 + 2 * accelerator.process_index):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            optimizer.zero_grad()
    accelerator.wait_for_everyone()
    return accelerator.unwrap_model(model).weight.flatten().tolist()


def wrapping() -> dict[str, Any]:
    """What is wrapped in DDP, and what is not."""
    from xaccel import DistributedDataParallelKwargs

    accelerator = accelerator_of(
        kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=3, find_unused_parameters=True, gradient_as_bucket_view=True)]
    )
    wrapped = torch.nn.parallel.DistributedDataParallel
    model = torch.nn.Linear(1, 1)
    prepared = accelerator.prepare(model)
    frozen = torch.nn.Linear(1, 1).requires_grad_(False)
    return {
        "type": str(accelerator.distributed_type),
        "wrapped": isinstance(prepared, wrapped),
        "twice": accelerator.prepare(model) is prepared and accelerator.prepare(prepared) is prepared,
        "inner": accelerator.unwrap_model(prepared) is model,
        "options": (prepared.bucket_bytes_cap, prepared.find_unused_parameters, prepared.gradient_as_bucket_view),
        "frozen": isinstance(accelerator.prepare(frozen), wrapped),
        "evaluation": isinstance(accelerator.prepare_model(torch.nn.Linear(1, 1), evaluation_mode=True), wrapped),
        "names": sorted(accelerator.get_state_dict(prepared)),
    }


def compressed(hook: str, wrapper: str) -> list[float]:
    """The gradient through a compression hook."""
    from xaccel import DistributedDataParallelKwargs

    accelerator = accelerator_of(kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=hook, comm_wrapper=wrapper)])  # type: ignore[arg-type]
    model = accelerator.prepare(torch.nn.Linear(2, 1, bias=False))
    accelerator.backward(model(torch.full((1, 2), float(accelerator.process_index + 1))).sum())
    return accelerator.unwrap_model(model).weight.grad.flatten().tolist()


def refused(hook: str, wrapper: str) -> str:
    """The message for hooks that cannot be."""
    from xaccel.errors import UnsupportedError

    try:
        compressed(hook, wrapper)
    except UnsupportedError as error:
        return str(error)
    return "no error"


def scheduler_moves(split_batches: bool) -> list[float]:
    """Learning rates along four micro-steps in windows of two."""
    from xaccel import DataLoaderConfiguration

    accelerator = accelerator_of(gradient_accumulation_steps=2, dataloader_config=DataLoaderConfiguration(split_batches=split_batches))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    seen = []
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        seen.append(scheduler.get_last_lr()[0])
    return seen


def fp16_overflow_on_one_rank() -> tuple[bool, float, float]:
    """An overflow on one rank skips the step on all."""
    accelerator = accelerator_of(mixed_precision="fp16")
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    loss = model(torch.ones(1, 1)).sum() * (float("inf") if accelerator.process_index == 1 else 1.0)
    accelerator.backward(loss)
    optimizer.step()
    skipped = accelerator.optimizer_step_was_skipped
    optimizer.zero_grad()
    return skipped, float(accelerator.unwrap_model(model).weight.detach()), accelerator._parts.strategy.precision.state_dict()["scale"]


def normalised(module_of: str, sizes: list[int], x: Any) -> dict[str, Any]:
    """Outputs, gradients and running statistics of a batch normalisation over the ranks' rows of `x`."""
    from xaccel_torch.batch_norm import use_global_statistics

    accelerator = accelerator_of()
    x = torch.as_tensor(x)
    norm = getattr(torch.nn, module_of)(x.shape[1]).double()
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, x.shape[1]))
        norm.bias.copy_(torch.linspace(-1, 1, x.shape[1]))
    if accelerator.num_processes > 1:
        norm = use_global_statistics(norm, "cpu")
    start = sum(sizes[: accelerator.process_index])
    mine = x[start : start + sizes[accelerator.process_index]].clone().requires_grad_()
    y = norm(mine)
    # A loss that weighs every element differently, summed over the ranks.
    factors = torch.linspace(0, 1, x.numel(), dtype=x.dtype).reshape(x.shape)[start : start + len(mine)]
    (y.pow(3) * factors).sum().backward()
    norm.eval()
    return {
        "y": y.detach().numpy(),
        "dx": mine.grad.numpy(),
        "dw": norm.weight.grad.numpy(),
        "db": norm.bias.grad.numpy(),
        "mean": norm.running_mean.numpy(),
        "var": norm.running_var.numpy(),
        "count": int(norm.num_batches_tracked),
        "eval": norm(x).detach().numpy(),
    }
