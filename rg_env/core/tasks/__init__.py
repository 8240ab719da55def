"""Reasoning Gym's tasks: mixtures, levels, the task table, the user's own."""
