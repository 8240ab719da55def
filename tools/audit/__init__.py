"""The audit of the graders (see README.md)."""
