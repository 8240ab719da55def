"""Rules that watch a run's metrics."""
