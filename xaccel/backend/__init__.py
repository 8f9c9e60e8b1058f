"""The protocols between the core and an adapter, one a file, and the registry that finds adapters by entry point."""
