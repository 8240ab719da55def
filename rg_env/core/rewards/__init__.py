"""Reward functions: the registry and the built-in ones."""
