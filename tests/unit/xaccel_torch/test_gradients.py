"""backward, token weighting and clipping on one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from xaccel.config.accumulation import GradientAccumulationPlugin
from xaccel.data.active import ActiveLoaders
from xaccel.errors import StepError
from xaccel.stepping.accumulation import Accumulation
from xaccel_torch.gradients import TorchGradients
from xaccel_torch.optimizer import AcceleratedOptimizer
from xaccel_torch.precision.amp import ScaledPrecision
from xaccel_torch.precision.full import FullPrecision


class Bench:
    """One weight, one optimizer, windows of `num_steps`."""

    def __init__(self, num_steps: int = 1, precision: FullPrecision | None = None, weight: float = 1.0):
        self.accumulation = Accumulation(GradientAccumulationPlugin(num_steps=num_steps), ActiveLoaders())
        self.precision = precision or FullPrecision()
        self.gradients = TorchGradients(self.accumulation, self.precision)
        self.weight = torch.nn.Parameter(torch.tensor(weight))
        self.optimizer = self.optimizer_of(self.weight)

    def optimizer_of(self, *parameters: torch.nn.Parameter, lr: float = 1.0) -> AcceleratedOptimizer:
        optimizer = AcceleratedOptimizer(torch.optim.SGD(parameters, lr=lr), self.accumulation, self.precision)
        self.gradients.register(optimizer)
        return optimizer

    def micro_step(self, x: list[float], with_items: bool) -> torch.Tensor:
        self.accumulation.advance()
        losses = self.weight * torch.tensor(x)
        if with_items:
            return self.gradients.backward(losses.sum(), scale=1.0, num_items=len(x))
        return self.gradients.backward(losses.mean(), scale=1.0 / self.accumulation.num_steps)

    @property
    def gradient(self) -> float:
        assert self.weight.grad is not None
        return float(self.weight.grad)


def test_backward_scales_the_gradient_and_returns_the_undivided_loss() -> None:
    bench = Bench()
    loss = bench.gradients.backward(bench.weight * 3, scale=0.25)
    assert float(loss) == 3.0
    assert not loss.requires_grad
    assert bench.gradient == 0.75


def test_backward_of_a_function_with_auxiliary_output() -> None:
    bench = Bench()
    loss, aux = bench.gradients.backward(lambda w, x, bias: (w * x + bias, "aux"), bench.weight, 4.0, scale=1.0, has_aux=True, bias=1.0)
    assert (float(loss), aux, bench.gradient) == (5.0, "aux", 4.0)


def test_options_of_torch_backward_pass_through() -> None:
    bench = Bench()
    loss = bench.weight * 2
    bench.gradients.backward(loss, scale=1.0, retain_graph=True)
    bench.gradients.backward(loss, scale=1.0)
    assert bench.gradient == 4.0


@pytest.mark.parametrize("with_items", [True, False])
def test_uneven_micro_batches(with_items: bool) -> None:
    # One process of case C-41: [1, 1] and [2]×6.
    bench = Bench(num_steps=2)
    bench.micro_step([1.0, 1.0], with_items)
    bench.micro_step([2.0] * 6, with_items)
    assert bench.gradient == pytest.approx(14 / 8 if with_items else 1.5)


def test_two_halves_make_the_whole() -> None:
    # C-42: k=2 with B=3 against k=1 with B=6; the logged losses are sums over items either way.
    x = [1.0, 5.0, 2.0, 8.0, 3.0, 4.0]
    halves, whole = Bench(num_steps=2), Bench()
    losses = [halves.micro_step(x[:3], True), halves.micro_step(x[3:], True)]
    assert float(sum(losses)) == float(whole.micro_step(x, True))
    assert halves.gradient == pytest.approx(whole.gradient)


def test_micro_batches_without_items_do_no_harm() -> None:
    bench = Bench(num_steps=3)
    for x in ([2.0, 4.0], [], [6.0]):
        bench.micro_step(x, True)
    assert bench.gradient == pytest.approx(4.0)
    empty = Bench()
    empty.micro_step([], True)
    assert empty.gradient == 0.0


def test_item_counts_may_be_tensors_and_each_window_counts_anew() -> None:
    bench = Bench(num_steps=2)
    for window in range(2):
        for x in (1.0, 3.0):
            bench.accumulation.advance()
            bench.gradients.backward(bench.weight * x, scale=1.0, num_items=torch.tensor(2))
        assert bench.gradient == 1.0, window
        bench.optimizer.zero_grad()


@pytest.mark.parametrize("first", [True, False])
def test_one_window_does_not_mix_both_means(first: bool) -> None:
    bench = Bench(num_steps=2)
    bench.micro_step([1.0], first)
    with pytest.raises(StepError, match="with and without num_items"):
        bench.micro_step([1.0], not first)


def test_a_parameter_of_two_optimizers_is_divided_once() -> None:
    bench = Bench()
    bench.optimizer_of(bench.weight)
    bench.micro_step([2.0, 4.0], True)
    assert bench.gradient == 3.0


def test_clipping() -> None:
    bench = Bench()
    bench.gradients.backward(bench.weight * 8, scale=1.0)
    assert float(bench.gradients.clip_norm([bench.weight], 2.0, 2.0)) == 8.0
    assert bench.gradient == pytest.approx(2.0)
    bench.gradients.clip_value(bench.weight, 0.5)
    assert bench.gradient == 0.5


def scaled(**options: Any) -> ScaledPrecision:
    from xaccel.config.handlers import GradScalerKwargs

    return ScaledPrecision("cpu", None, GradScalerKwargs(**options))


def test_clipping_sees_unscaled_gradients_of_the_whole_window() -> None:
    # C-45
    bench = Bench(num_steps=2, precision=scaled())
    bench.micro_step([8.0], False)
    bench.micro_step([8.0], False)
    assert float(bench.gradients.clip_norm([bench.weight], 2.0, 2.0)) == 8.0
    bench.gradients.unscale(None)
    bench.optimizer.step()
    assert float(bench.weight.detach()) == pytest.approx(-1.0)


def test_items_and_loss_scale_go_together() -> None:
    bench = Bench(precision=scaled())
    bench.micro_step([2.0, 4.0], True)
    bench.optimizer.step()
    assert float(bench.weight.detach()) == pytest.approx(-2.0)


def test_two_optimizers_of_one_backward_are_unscaled_once_each() -> None:
    bench = Bench(precision=scaled(growth_interval=1))
    other = torch.nn.Parameter(torch.tensor(1.0))
    second = bench.optimizer_of(other)
    for clips in (False, True):
        bench.gradients.backward(bench.weight * 0.25 + other * 0.5, scale=1.0)
        if clips:
            bench.gradients.clip_norm(iter([bench.weight, other]), 100.0, 2.0)
        for optimizer in (bench.optimizer, second):
            optimizer.step()
        for optimizer in (bench.optimizer, second):
            optimizer.zero_grad()
    assert (float(bench.weight.detach()), float(other.detach())) == (0.5, 0.0)


def test_clipping_one_model_leaves_the_other_scaled() -> None:
    bench = Bench(precision=scaled())
    other = torch.nn.Parameter(torch.tensor(1.0))
    second = bench.optimizer_of(other)
    for weight, optimizer in ((bench.weight, bench.optimizer), (other, second)):
        bench.gradients.backward(weight * 0.5, scale=1.0)
        assert float(bench.gradients.clip_norm([weight], 10.0, 2.0)) == 0.5
        optimizer.step()
        optimizer.zero_grad()
    assert (float(bench.weight.detach()), float(other.detach())) == (0.5, 0.5)


def test_gradients_that_were_clipped_and_thrown_away_do_not_count_as_unscaled() -> None:
    bench = Bench(precision=scaled())
    for _ in range(2):
        bench.gradients.backward(bench.weight * 0.5, scale=1.0)
        assert float(bench.gradients.clip_norm([bench.weight], 10.0, 2.0)) == 0.5
        bench.optimizer.zero_grad()
