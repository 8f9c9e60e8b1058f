"""Train a digit classifier: one script for both frameworks; only the model's definition differs.

xaccel launch --backend torch --num_processes 2 examples/digits/train.py --backend torch --stop-after 40
xaccel launch --backend jax --devices 8 examples/digits/train.py --backend jax --resume runs/digits/checkpoints/checkpoint_3
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from xaccel import Accelerator, ArrayLoader, ProjectConfiguration
from xaccel.utils import set_seed, tqdm

GLOBAL_BATCH = 128
PEAK_LEARNING_RATE = 3e-3


def digits() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """scikit-learn's digits, scaled to [0, 1]: 1437 images to train on, 360 to test on."""
    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)
    labels = data.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[360:], order[:360]
    return {"image": images[train], "label": labels[train]}, {"image": images[test], "label": labels[test]}


def cosine(total_steps: int):
    """Learning rate at an optimizer step: a cosine from its peak to a tenth of it."""

    def schedule(step: int) -> float:
        return PEAK_LEARNING_RATE * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(step, total_steps) / total_steps)))

    return schedule


def evaluate(accelerator: Accelerator, framework, model, loader) -> tuple[float, np.ndarray]:
    """Accuracy, and the logits of every test image in order."""
    model.eval()
    logits, labels = [], []
    for batch in loader:
        found, wanted = accelerator.gather_for_metrics((framework.predict(model, batch), batch["label"]))
        logits.append(np.asarray(found))
        labels.append(np.asarray(wanted))
    model.train()
    every = np.concatenate(logits)
    return float((every.argmax(-1) == np.concatenate(labels)).mean()), every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["torch", "jax"], required=True)
    parser.add_argument("--project-dir", type=Path, default=Path("runs/digits"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--stop-after", type=int, help="stop in the middle of an epoch, after this many steps")
    parser.add_argument("--resume", type=Path, help="a checkpoint written by either framework")
    args = parser.parse_args()

    accelerator = Accelerator(
        backend=args.backend,
        split_batches=True,
        batch_statistics="global",
        log_with="tensorboard",
        project_config=ProjectConfiguration(project_dir=str(args.project_dir), automatic_checkpoint_naming=True),
    )
    set_seed(42)
    train, test = digits()
    framework = importlib.import_module(f"model_{args.backend}")
    steps_per_epoch = math.ceil(len(train["label"]) / GLOBAL_BATCH)
    model, optimizer, scheduler = framework.build(cosine(steps_per_epoch * args.epochs))
    model, optimizer, scheduler, train_loader, test_loader = accelerator.prepare(
        model,
        optimizer,
        scheduler,
        ArrayLoader(train, batch_size=GLOBAL_BATCH, shuffle=True),
        ArrayLoader(test, batch_size=GLOBAL_BATCH),
    )
    accelerator.init_trackers(
        "digits", config={"backend": args.backend, "global_batch": GLOBAL_BATCH, "peak_learning_rate": PEAK_LEARNING_RATE}
    )

    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if args.resume:
        accelerator.load_state(args.resume)
        accelerator.print(f"{args.backend}: resumed {args.resume} at step {progress.step}, in the middle of epoch {progress.epoch + 1}")

    losses = []
    while progress.epoch < args.epochs and progress.step != args.stop_after:
        bar = tqdm(
            train_loader,
            desc=f"{args.backend} epoch {progress.epoch + 1}/{args.epochs}",
            initial=progress.step % steps_per_epoch,
            total=steps_per_epoch,
        )
        for batch in bar:
            with accelerator.accumulate(model):
                loss = accelerator.backward(framework.loss_fn, batch)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            progress.step += 1
            value = float(accelerator.reduce(loss, "mean"))
            losses.append((progress.step, value))
            accelerator.log({"loss": value, "learning_rate": scheduler.get_last_lr()[0]}, step=progress.step)
            bar.set_postfix(loss=f"{value:.4f}")
            if progress.step == args.stop_after:
                break
        else:
            progress.epoch += 1
            accelerator.save_state()
    accuracy, logits = evaluate(accelerator, framework, model, test_loader)
    checkpoint = accelerator.save_state()
    accelerator.print(f"{args.backend}: accuracy {accuracy:.4f} at step {progress.step}; saved {checkpoint}")
    if accelerator.is_main_process:
        np.save(args.project_dir / f"logits_{args.backend}.npy", logits)
        record = {
            "accuracy": accuracy,
            "losses": losses,
            "checkpoint": str(checkpoint),
            "processes": accelerator.num_processes,
            "replicas": accelerator.num_replicas,
        }
        (args.project_dir / f"result_{args.backend}.json").write_text(json.dumps(record))
    accelerator.end_training()


class Progress:
    """Where the run stands; saved and restored with everything else."""

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self.epoch = state["step"], state["epoch"]


if __name__ == "__main__":
    main()
