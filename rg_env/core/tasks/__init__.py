"""Tasks from Reasoning Gym and from the user: mixtures, levels and the task table."""
