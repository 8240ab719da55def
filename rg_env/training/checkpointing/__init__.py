"""Write, validate and load checkpoints."""
