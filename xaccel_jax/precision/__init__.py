"""Mixed precision on JAX, one file each."""
