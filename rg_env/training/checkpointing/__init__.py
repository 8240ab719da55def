"""Writing, validating and loading checkpoints."""
