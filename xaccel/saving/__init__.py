"""`save_state`, `load_state`, `save_model`: knows live objects and no bytes."""
