"""The embedded engine: generation with the trainer's model in the trainer's process."""
