"""The embedded engine: generation with the trainer's model in its own process."""
