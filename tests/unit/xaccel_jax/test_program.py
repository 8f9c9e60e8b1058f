"""The recorded step: right values, one call, one compilation, and nothing lost when something is touched on the way."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from xaccel import Accelerator, GradientAccumulationPlugin
from xaccel.errors import ConfigurationError, StepError


class Linear(nnx.Module):
    """w·x for one weight."""

    def __init__(self, start: float = 0.0):
        self.w = nnx.Param(jnp.full((1,), start))

    def __call__(self, x: Any) -> Any:
        return x * self.w[...]


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.fc1 = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.fc2 = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.fc2(self.drop(nnx.relu(self.norm(self.fc1(x)))))


def mean_output(model: Any, batch: Any) -> Any:
    return jnp.mean(model(batch))


def squared(model: Any, batch: Any) -> Any:
    return jnp.mean((model(batch) - 1.0) ** 2)


def weight(model: Any) -> float:
    return float(next(iter(model.variables().values()))[0])


def make(optimizer: Any, *extra: Any, model: Any = None, **options: Any) -> tuple[Any, ...]:
    accelerator = Accelerator(backend="jax", cpu=True, **options)
    return (accelerator, *accelerator.prepare(model or Linear(), optimizer, *extra))


def ones(count: int = 8) -> np.ndarray:
    return np.ones((count, 1), np.float32)


def test_one_step() -> None:
    accelerator, model, optimizer = make(optax.sgd(0.1))
    loss = accelerator.backward(mean_output, 2 * ones())
    optimizer.step()
    assert float(loss) == 0.0
    assert weight(model) == pytest.approx(-0.2)


def test_a_model_may_be_passed_as_well() -> None:
    accelerator, model, optimizer = make(optax.sgd(0.1))
    accelerator.backward(mean_output, model, ones())
    optimizer.step()
    accelerator.backward(lambda batch: jnp.mean(model(batch)), ones())
    optimizer.step()
    assert weight(model) == pytest.approx(-0.2)


def test_nothing_runs_before_the_step_unless_touched() -> None:
    accelerator, _, optimizer = make(optax.sgd(0.1))
    loss = accelerator.backward(mean_output, ones())
    assert not loss.is_ready
    assert repr(loss) == "<loss, not computed yet>"
    optimizer.step()
    assert loss.is_ready


def test_a_loss_touched_before_the_step_changes_nothing() -> None:
    weights = []
    for touch in (False, True):
        accelerator, model, optimizer = make(optax.adam(0.1), model=Linear(3.0))
        for _ in range(3):
            loss = accelerator.backward(squared, ones())
            if touch:
                assert float(loss) > 0
            norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
            if touch:
                assert float(norm) > 0
            optimizer.step()
            optimizer.zero_grad()
        weights.append(weight(model))
    assert weights[0] == weights[1]


def test_handles_are_numbers() -> None:
    accelerator, _, optimizer = make(optax.sgd(0.1), model=Linear(2.0))
    loss = accelerator.backward(mean_output, ones())
    optimizer.step()
    assert loss + 1 == 3.0
    assert 1 - loss == -1.0
    assert -loss < 0 < loss
    assert f"{loss:.2f}" == "2.00"
    assert loss.item() == 2.0
    assert np.asarray(loss) == np.float32(2.0)
    assert jnp.asarray(loss) == 2.0
    assert loss.detach().shape == ()


def test_clip_norm_is_torch_s() -> None:
    accelerator, model, optimizer = make(optax.sgd(1.0))
    accelerator.backward(mean_output, 10 * ones())
    norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert float(norm) == pytest.approx(10.0)
    assert weight(model) == pytest.approx(-1.0, rel=1e-5)


def test_clip_value() -> None:
    accelerator, model, optimizer = make(optax.sgd(1.0))
    accelerator.backward(mean_output, 10 * ones())
    accelerator.clip_grad_value_(model.parameters(), 0.25)
    optimizer.step()
    assert weight(model) == pytest.approx(-0.25)


@pytest.mark.parametrize("steps", [2, 5, 20])
def test_accumulation_is_the_mean_of_the_micro_batches(steps: int) -> None:
    accelerator, model, optimizer = make(optax.sgd(1.0), gradient_accumulation_steps=steps)
    for micro in range(steps):
        with accelerator.accumulate(model):
            accelerator.backward(mean_output, (micro + 1) * ones())
            optimizer.step()
            optimizer.zero_grad()
        assert accelerator.sync_gradients == (micro == steps - 1)
    assert weight(model) == pytest.approx(-(steps + 1) / 2)


def test_losses_read_in_every_micro_step() -> None:
    accelerator, model, optimizer = make(optax.sgd(1.0), gradient_accumulation_steps=4)
    losses = []
    for micro in range(8):
        with accelerator.accumulate(model):
            losses.append(float(accelerator.backward(mean_output, (micro % 4 + 1) * ones())))
            optimizer.step()
            optimizer.zero_grad()
    assert losses == pytest.approx([0, 0, 0, 0, -2.5, -5.0, -7.5, -10.0])
    assert weight(model) == pytest.approx(-5.0)


def test_case_c48_schedule_and_the_window_at_the_end_of_the_loader() -> None:
    """optax SGD, lr = 0.1 (step + 1), gradients 1, windows of 2, 5 micro-batches: 0, -0.1, -0.1, -0.3, and half a step at the end."""
    from xaccel import ArrayLoader

    plugin = GradientAccumulationPlugin(num_steps=2)
    schedule = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    accelerator, model, optimizer, loader, scheduler = make(
        schedule,
        ArrayLoader(ones(40), batch_size=8),
        lambda step: 0.1 * (step + 1),
        gradient_accumulation_plugin=plugin,
        split_batches=True,
    )
    weights = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(mean_output, batch)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        weights.append(weight(model))
    assert weights == pytest.approx([0, -0.1, -0.1, -0.3, -0.45])
    assert scheduler.scheduler.last_epoch == 3


def test_a_scheduler_sets_the_rate_without_a_new_trace() -> None:
    traces = []

    def loss_fn(model: Any, batch: Any) -> Any:
        traces.append(1)
        return jnp.mean(model(batch))

    injected = optax.inject_hyperparams(optax.sgd)(learning_rate=1.0)
    accelerator, model, optimizer, scheduler = make(injected, lambda step: 1.0 / (step + 1), split_batches=True)
    for _ in range(4):
        accelerator.backward(loss_fn, ones())
        optimizer.step()
        scheduler.step()
    assert weight(model) == pytest.approx(-(1 + 1 / 2 + 1 / 3 + 1 / 4))
    assert scheduler.get_last_lr() == [0.2]
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert len(traces) == 1


def test_a_function_made_anew_each_step_is_one_program() -> None:
    traces = []
    accelerator, model, optimizer = make(optax.sgd(1.0))
    for step in range(4):
        batch = jnp.full((8, 1), float(step))

        def loss_fn(model: Any, batch: Any = batch) -> Any:
            traces.append(1)
            return jnp.mean(model(batch))

        accelerator.backward(loss_fn)
        optimizer.step()
    assert weight(model) == pytest.approx(-6.0)
    assert len(traces) == 1


def test_a_numpy_batch_changed_after_recording_does_not_count() -> None:
    accelerator, model, optimizer = make(optax.sgd(1.0))
    batch = ones()
    accelerator.backward(mean_output, batch)
    batch[:] = 100.0
    optimizer.step()
    assert weight(model) == pytest.approx(-1.0)


def test_case_12_token_weights() -> None:
    """Micro-batches with 2 and 6 valid tokens: the mean over all 8, not the mean of the two means."""
    accelerator, model, optimizer = make(optax.sgd(1.0), gradient_accumulation_steps=2)

    def token_loss(model: Any, batch: Any) -> Any:
        return jnp.sum(model(batch))

    for tokens, value in ((2, 1.0), (6, 5.0)):
        with accelerator.accumulate(model):
            accelerator.backward(token_loss, np.full((tokens, 1), value, np.float32), num_items=tokens)
            optimizer.step()
            optimizer.zero_grad()
    assert weight(model) == pytest.approx(-(2 * 1.0 + 6 * 5.0) / 8)


def test_token_weights_when_losses_are_read_and_where_a_micro_batch_is_empty() -> None:
    accelerator, model, optimizer = make(optax.sgd(1.0), gradient_accumulation_steps=3)
    for tokens, value in ((2, 1.0), (0, 7.0), (6, 5.0)):
        with accelerator.accumulate(model):
            batch = np.full((8, 1), value, np.float32) * (np.arange(8)[:, None] < tokens)
            float(accelerator.backward(lambda model, batch: jnp.sum(model(batch)), batch, num_items=tokens))
            optimizer.step()
            optimizer.zero_grad()
    assert weight(model) == pytest.approx(-4.0)


def test_with_and_without_token_counts_in_one_window_is_an_error() -> None:
    accelerator, model, _ = make(optax.sgd(1.0), gradient_accumulation_steps=2)
    with accelerator.accumulate(model):
        accelerator.backward(mean_output, ones(), num_items=8)
    with accelerator.accumulate(model), pytest.raises(StepError, match="num_items"):
        accelerator.backward(mean_output, ones())


def test_auxiliary_outputs() -> None:
    accelerator, _, optimizer = make(optax.sgd(1.0), model=Linear(2.0))
    loss, aux = accelerator.backward(lambda model, x: (jnp.mean(model(x)), {"outputs": model(x)}), ones(), has_aux=True)
    optimizer.step()
    assert float(loss) == 2.0
    assert aux.value["outputs"].shape == (8, 1)


def test_an_exception_while_tracing_leaves_everything_as_it_was() -> None:
    accelerator, model, optimizer = make(optax.adam(0.1), model=Linear(2.0))
    accelerator.backward(lambda model, x: undefined_name(model(x)), ones())  # noqa: F821
    with pytest.raises(NameError, match="undefined_name"):
        optimizer.step()
    accelerator.free_memory()
    assert weight(model) == 2.0
    assert all(not leaf.is_deleted() for leaf in optimizer.state_leaves().values())


def test_old_values_are_donated() -> None:
    accelerator, model, optimizer = make(optax.adam(0.1))
    before = list(model.params)
    accelerator.backward(mean_output, jax.device_put(ones()))
    optimizer.step()
    assert all(leaf.is_deleted() for leaf in before)


def test_the_user_s_own_module_lives_on() -> None:
    mine = Linear(2.0)
    accelerator, model, optimizer = make(optax.sgd(1.0), model=mine)
    accelerator.backward(mean_output, ones())
    optimizer.step()
    assert float(mine.w[0]) == 2.0
    assert float(accelerator.unwrap_model(model).w[0]) == pytest.approx(1.0)


def test_zero_grad_drops_gradients_but_not_losses() -> None:
    accelerator, model, optimizer = make(optax.sgd(1.0), model=Linear(2.0))
    loss = accelerator.backward(mean_output, ones())
    optimizer.zero_grad()
    assert float(loss) == 2.0
    accelerator.backward(mean_output, 3 * ones())
    optimizer.step()
    assert weight(model) == pytest.approx(-1.0)


@pytest.mark.parametrize("call", ["step", "clip"])
def test_without_gradients_is_an_error(call: str) -> None:
    accelerator, model, optimizer = make(optax.sgd(1.0))
    with pytest.raises(StepError, match=r"backward\(loss_fn, batch\) first"):
        optimizer.step() if call == "step" else accelerator.clip_grad_norm_(model.parameters(), 1.0)


def test_a_value_has_no_graph_and_the_error_says_what_to_do() -> None:
    accelerator, model, _ = make(optax.sgd(1.0))
    with pytest.raises(StepError, match=r"loss_fn\(model, batch\)"):
        accelerator.backward(jnp.mean(model(ones())))


def test_the_page_s_own_loop_with_a_prepared_loss() -> None:
    """outputs = model(x); loss = loss_fn(outputs, y); accelerator.backward(loss)."""

    def mse(outputs: Any, targets: Any) -> Any:
        return jnp.mean((outputs - targets) ** 2)

    results = []
    for page_form in (True, False):
        accelerator, model, optimizer, loss_fn = make(optax.sgd(0.1), mse, model=Linear(3.0))
        for _ in range(3):
            if page_form:
                loss = loss_fn(model(ones()), 2 * ones())
                accelerator.backward(loss)
            else:
                loss = accelerator.backward(lambda model, x, y: mse(model(x), y), ones(), 2 * ones())
            optimizer.step()
            optimizer.zero_grad()
        results.append((float(loss), weight(model)))
    assert results[0] == results[1]


def test_a_lazy_output_materialises_when_touched() -> None:
    _, model, _, _ = make(optax.sgd(0.1), lambda outputs, targets: jnp.mean(outputs - targets), model=Linear(3.0))
    output = model(ones())
    assert np.asarray(output).tolist() == (3 * ones()).tolist()


def test_batch_norm_and_dropout_advance_in_training_and_rest_in_evaluation() -> None:
    accelerator, model, optimizer = make(optax.sgd(0.1), model=Net(nnx.Rngs(0)), batch_statistics="global")
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    before = {path: np.asarray(value) for path, value in model.variables().items() if model.variable_kinds()[path] == "batch_stats"}
    accelerator.backward(squared, x)
    optimizer.step()
    after = model.variables()
    assert any(not np.allclose(before[path], after[path]) for path in before)
    model.eval()
    first, second = np.asarray(model(x)), np.asarray(model(x))
    assert (first == second).all()
    assert all(np.array_equal(model.variables()[path], after[path]) for path in before)
    model.train()
    assert not np.array_equal(np.asarray(model(x)), np.asarray(model(x))), "dropout draws anew"


@pytest.mark.parametrize("statistics", ["replica", "global"])
def test_eight_replicas_hold_equal_values(statistics: str) -> None:
    accelerator, model, optimizer = make(optax.adamw(0.1), model=Net(nnx.Rngs(0)), batch_statistics=statistics)
    from xaccel import ArrayLoader

    loader = accelerator.prepare(ArrayLoader(np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32), batch_size=2))
    for batch in loader:
        accelerator.backward(squared, batch)
        optimizer.step()
    for leaf in [*model.params, *optimizer.state_leaves().values()]:
        assert leaf.is_fully_replicated
        assert all(np.array_equal(shard.data, leaf.addressable_shards[0].data) for shard in leaf.addressable_shards)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(8)(x)))
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(x))


def test_a_bound_linen_module_trains() -> None:
    module = Linen()
    x = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    variables = module.init(jax.random.key(0), x, train=False)
    accelerator, model, optimizer = make(optax.adam(0.05), model=module.bind(variables), batch_statistics="global")
    losses = []
    for _ in range(30):
        losses.append(accelerator.backward(squared, x))
        optimizer.step()
        optimizer.zero_grad()
    assert float(losses[-1]) < 0.7 * float(losses[0])
    model.eval()
    outputs = model(x, train=False)
    bound = accelerator.unwrap_model(model)
    assert np.allclose(outputs, bound(x, train=False), atol=1e-6)


def test_an_unbound_linen_module_is_an_error() -> None:
    accelerator = Accelerator(backend="jax", cpu=True)
    with pytest.raises(Exception, match=r"module\.bind\(variables\)"):
        accelerator.prepare(Linen())


def test_an_nnx_optimizer() -> None:
    mine = Linear()
    accelerator, model, optimizer = make(nnx.Optimizer(mine, optax.sgd(0.5), wrt=nnx.Param), model=mine)
    accelerator.backward(mean_output, ones())
    optimizer.step()
    assert weight(model) == pytest.approx(-0.5)


def test_multi_steps_points_to_accumulation() -> None:
    accelerator = Accelerator(backend="jax", cpu=True)
    with pytest.raises(ConfigurationError, match="gradient_accumulation_steps"):
        accelerator.prepare(Linear(), optax.MultiSteps(optax.sgd(0.1), 2))


def test_a_scheduler_needs_an_injected_rate() -> None:
    accelerator = Accelerator(backend="jax", cpu=True)
    with pytest.raises(ConfigurationError, match=r"optax\.inject_hyperparams"):
        accelerator.prepare(Linear(), optax.sgd(0.1), lambda step: 0.1)


def test_bf16_computes_in_bfloat16_and_keeps_float32() -> None:
    seen = []

    class Probe(nnx.Module):
        def __init__(self) -> None:
            self.w = nnx.Param(jnp.ones((1,)))

        def __call__(self, x: Any) -> Any:
            seen.append((x.dtype, self.w[...].dtype))
            return x * self.w[...]

    accelerator, model, optimizer = make(optax.sgd(0.1), model=Probe(), mixed_precision="bf16")
    loss = accelerator.backward(lambda model, x: jnp.mean(model(x)), ones())
    optimizer.step()
    assert seen[-1] == (jnp.bfloat16, jnp.bfloat16)
    assert loss.dtype == jnp.float32
    assert model.params[0].dtype == jnp.float32


def test_two_hundred_steps_on_eight_devices() -> None:
    accelerator, model, optimizer = make(optax.sgd(0.01), model=Linear(3.0))
    from xaccel import ArrayLoader

    loader = accelerator.prepare(ArrayLoader(ones(160), batch_size=1))
    for _ in range(10):
        for batch in loader:
            accelerator.backward(squared, batch)
            optimizer.step()
    assert weight(model) == pytest.approx(1 + 2 * 0.98**200, rel=1e-3)
