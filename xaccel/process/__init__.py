"""Where this process stands, and code that runs on some processes only."""
