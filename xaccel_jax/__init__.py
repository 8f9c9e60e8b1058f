"""The adapter for JAX. `backend.py` is the door."""
