"""Rows: generation, selection, splits, cache, manifest."""
