"""Grading: from a completion to a score."""
