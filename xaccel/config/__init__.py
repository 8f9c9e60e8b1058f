"""Options, one file a topic, and `Settings`, which merges them once."""
