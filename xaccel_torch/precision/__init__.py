"""Mixed precision on torch, one file each."""
