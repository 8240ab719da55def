"""Runs over a grid of settings, and their comparison."""
