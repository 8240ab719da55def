"""Generation with the trainer's own model, in its process."""
