"""What collectives mean over nested structures; the adapters only move flat lists of arrays."""
