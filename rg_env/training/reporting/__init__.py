"""What a run prints, logs and writes."""
