"""Console output, metrics and metric services of a run."""
