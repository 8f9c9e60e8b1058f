"""The adapter for PyTorch. `backend.py` is the door."""
