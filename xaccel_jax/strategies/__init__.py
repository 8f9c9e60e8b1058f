"""Ways of distributing on JAX, one file each."""
