"""Which replica sees which sample: a plan of integers, and the loader that executes it."""
