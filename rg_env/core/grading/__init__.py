"""Grading, which turns a completion into a score."""
