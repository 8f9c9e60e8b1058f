"""How `prepare` works: objects by role, and a fold over named stages."""
