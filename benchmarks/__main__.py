"""`python -m benchmarks` (or `make bench`): every benchmark, one after the other."""

from benchmarks import import_time, step_program

import_time.main()
step_program.main()
