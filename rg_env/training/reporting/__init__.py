"""A run's console output, metrics and experiment trackers."""
