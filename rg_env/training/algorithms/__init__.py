"""The loss, what goes into it, and the optimizers."""
