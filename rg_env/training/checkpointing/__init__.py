"""Writing, checking and resuming checkpoints."""
