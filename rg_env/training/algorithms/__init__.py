"""The loss and what goes into it."""
