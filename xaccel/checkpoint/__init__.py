"""The shared checkpoint format: knows bytes and no accelerator."""
