"""Sweeps: runs over a grid of settings, and their comparison."""
