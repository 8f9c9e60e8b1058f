"""The demo: PyTorch trains on two processes, JAX resumes in the middle of an epoch on eight devices, plain PyTorch opens the result.

python examples/digits/run.py        (or `make demo`)
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import plotext
from matplotlib import pyplot
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
RUN = HERE / "runs"
STEPS_PER_EPOCH = 12
TORCH_STEPS = 3 * STEPS_PER_EPOCH + 6


def launch(title: str, *arguments: str) -> None:
    """Run one `xaccel launch`, or end the demo with its exit status."""
    Console().rule(title)
    command = [sys.executable, "-m", "xaccel.cli", "launch", *arguments]
    status = subprocess.run(command, cwd=HERE, check=False).returncode
    if status:
        sys.exit(f"demo: {' '.join(command)} ended with status {status}")


def result(backend: str) -> dict:
    """What `train.py` wrote for one framework."""
    return json.loads((RUN / f"result_{backend}.json").read_text())


def evaluate_in_plain_torch(checkpoint: Path) -> tuple[float, np.ndarray]:
    """Accuracy and logits of the final weights in the plain module: no xaccel, only safetensors and torch."""
    import torch
    from safetensors.torch import load_file

    sys.path.insert(0, str(HERE))
    from model_torch import DigitNet
    from train import digits

    model = DigitNet()
    missing, unexpected = model.load_state_dict(load_file(checkpoint / "model.safetensors"), strict=False)
    # PyTorch counts batches for a momentum that these layers do not use; Flax has no such counter.
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing), (missing, unexpected)
    model.eval()
    _, test = digits()
    with torch.no_grad():
        logits = model(torch.from_numpy(test["image"])).numpy()
    return float((logits.argmax(-1) == test["label"]).mean()), logits


def plot(torch_losses: list, jax_losses: list) -> Path:
    """The loss curve, in the terminal and as a PNG."""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(90, 18)
    plotext.plot(*zip(*torch_losses, strict=True), label="PyTorch, 2 processes", marker="dot")
    plotext.plot(*zip(*jax_losses, strict=True), label="JAX, 8 devices", marker="x")
    plotext.title("training loss by step")
    plotext.show()
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(*zip(*torch_losses, strict=True), label="PyTorch, 2 processes")
    axes.plot(*zip(*jax_losses, strict=True), label="JAX, 8 devices")
    axes.axvline(torch_losses[-1][0], color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="step", ylabel="training loss", title="one run, two frameworks")
    axes.legend()
    figure.tight_layout()
    path = RUN / "loss.png"
    figure.savefig(path, dpi=120)
    return path


def main() -> None:
    shutil.rmtree(RUN, ignore_errors=True)
    shared = ["train.py", "--project-dir", str(RUN)]
    launch(
        "PyTorch, 2 processes",
        "--backend",
        "torch",
        "--num_processes",
        "2",
        "--cpu",
        *shared,
        "--backend",
        "torch",
        "--stop-after",
        str(TORCH_STEPS),
    )
    first = result("torch")
    launch(
        "JAX, 8 devices, from PyTorch's checkpoint",
        "--backend",
        "jax",
        "--devices",
        "8",
        "--cpu",
        *shared,
        "--backend",
        "jax",
        "--resume",
        first["checkpoint"],
    )
    second = result("jax")

    Console().rule("plain PyTorch, from JAX's checkpoint")
    accuracy, logits = evaluate_in_plain_torch(Path(second["checkpoint"]))
    jax_logits = np.load(RUN / "logits_jax.npy")
    difference = float(np.abs(logits - jax_logits).max())
    same = bool((logits.argmax(-1) == jax_logits.argmax(-1)).all())

    table = Table(title="digits")
    for column in ("where", "steps", "test accuracy"):
        table.add_column(column)
    table.add_row("PyTorch, 2 processes (stopped in epoch 4)", f"1-{first['losses'][-1][0]}", f"{first['accuracy']:.4f}")
    table.add_row("JAX, 8 devices (resumed)", f"{second['losses'][0][0]}-{second['losses'][-1][0]}", f"{second['accuracy']:.4f}")
    table.add_row("plain PyTorch, from JAX's checkpoint", "-", f"{accuracy:.4f}")
    Console().print(table)
    print(f"predictions on the test set: {'equal' if same else 'DIFFERENT'}; largest difference in logits: {difference:.2e}")
    print(f"loss curve: {plot(first['losses'], second['losses'])}")
    if not (same and difference < 1e-4 and min(second["accuracy"], accuracy) > 0.95):
        sys.exit("demo: expected equal predictions, a difference in logits below 1e-4 and accuracies above 0.95")


if __name__ == "__main__":
    main()
