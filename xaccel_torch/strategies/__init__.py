"""Ways of distributing on torch, one file each."""
