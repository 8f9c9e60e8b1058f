"""Starting processes with ranks."""
