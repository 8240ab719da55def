"""From a completion to a score."""
