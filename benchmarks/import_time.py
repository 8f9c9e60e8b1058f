"""What `import xaccel` adds: at most 60 ms to bare Python, and 40 ms to `import numpy`.

python -m benchmarks.import_time
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from benchmarks.runner import PairResult, measure_pairs, record

# Name -> baseline, candidate, most milliseconds between them.
PAIRS = {
    "import xaccel": ("pass", "import xaccel", 60.0),
    "import xaccel beside numpy": ("import numpy", "import numpy, xaccel", 40.0),
    "from xaccel import Accelerator beside numpy": ("import numpy", "import numpy; from xaccel import Accelerator", None),
}


def run(code: str) -> Callable[[], object]:
    """A fresh interpreter that runs `code`."""
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)


def results() -> list[PairResult]:
    """All pairs."""
    return [measure_pairs(name, (before, run(before)), (after, run(after))) for name, (before, after, _) in PAIRS.items()]


def main() -> None:
    found = results()
    record(found, "import_time")
    for result in found:
        limit = PAIRS[result.name][2]
        if limit is not None and result.difference_seconds * 1e3 > limit:
            sys.exit(
                f"{result.name} costs {result.difference_seconds * 1e3:.1f} ms more than {result.baseline!r}: at most {limit:.0f} ms are wanted"
            )


if __name__ == "__main__":
    main()
