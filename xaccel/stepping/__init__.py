"""One training step: accumulate, backward, clip, schedule."""
