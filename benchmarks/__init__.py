"""Benchmarks: ratios of interleaved pairs, with what they were measured on."""
