"""`python -m benchmarks` (or `make bench`): every benchmark, one after the other."""

from benchmarks import import_time

import_time.main()
