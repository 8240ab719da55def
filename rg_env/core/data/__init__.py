"""Rows: their generation, selection, splits, cache and manifest."""
