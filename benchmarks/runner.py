"""Measure two ways of doing one thing as interleaved pairs (A B A B ...), and record medians and ratio with their provenance.

Why pairs: a shared machine drifts by more than most differences that are worth knowing. Both sides of a pair see the same moment, so the median of the
pairs' ratios is steady where two separate medians are not.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("xaccel", "numpy", "torch", "jax", "jaxlib", "flax", "optax", "safetensors")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairResult:
    """Times of one pair, in seconds, in the order in which they were measured.

    Attributes:
        name: of the benchmark.
        baseline, candidate: what the two sides are.
        baseline_seconds, candidate_seconds: one entry a pair.
    """

    name: str
    baseline: str
    candidate: str
    baseline_seconds: tuple[float, ...]
    candidate_seconds: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median over the pairs of candidate / baseline; below 1 the candidate is faster."""
        return statistics.median(b / a for a, b in zip(self.baseline_seconds, self.candidate_seconds, strict=True))

    @property
    def difference_seconds(self) -> float:
        """Median over the pairs of candidate - baseline."""
        return statistics.median(b - a for a, b in zip(self.baseline_seconds, self.candidate_seconds, strict=True))

    def summary(self) -> dict[str, Any]:
        """Plain values, with every single time."""
        return {
            **dataclasses.asdict(self),
            "baseline_median_seconds": statistics.median(self.baseline_seconds),
            "candidate_median_seconds": statistics.median(self.candidate_seconds),
            "ratio": self.ratio,
            "difference_seconds": self.difference_seconds,
        }

    def __str__(self) -> str:
        before, after = statistics.median(self.baseline_seconds), statistics.median(self.candidate_seconds)
        return (
            f"{self.name}: {self.baseline} {before * 1e3:.1f} ms, {self.candidate} {after * 1e3:.1f} ms, "
            f"ratio {self.ratio:.3f}, difference {self.difference_seconds * 1e3:+.1f} ms ({len(self.baseline_seconds)} pairs)"
        )


def measure_pairs(
    name: str,
    baseline: tuple[str, Callable[[], object]],
    candidate: tuple[str, Callable[[], object]],
    *,
    num_pairs: int = 15,
    num_warmups: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> PairResult:
    """Run both sides in turn.

    Args:
        baseline, candidate: label, and what to time; a callable that starts asynchronous work must wait for it.
        num_pairs: pairs that count.
        num_warmups: pairs before them that do not.
        clock: seconds.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(num_warmups + num_pairs):
        for side, (_, run) in enumerate((baseline, candidate)):
            started = clock()
            run()
            elapsed = clock() - started
            if pair >= num_warmups:
                times[side].append(elapsed)
    return PairResult(
        name=name, baseline=baseline[0], candidate=candidate[0], baseline_seconds=tuple(times[0]), candidate_seconds=tuple(times[1])
    )


def provenance() -> dict[str, Any]:
    """What a number was measured on."""
    return {
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }


def record(results: Sequence[PairResult], file: str, folder: Path = RESULTS) -> Path:
    """Print the results and write them as JSON.

    Args:
        file: name without ending.
        folder: made where it is absent.

    Returns:
        The file's path.
    """
    for result in results:
        print(result)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file}.json"
    path.write_text(json.dumps({"provenance": provenance(), "results": [result.summary() for result in results]}, indent=1) + "\n")
    return path


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
