"""Batches, the order of rows, and the user's own rows."""
