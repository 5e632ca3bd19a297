"""Which files, their samples as one dataset, and parts of it."""
