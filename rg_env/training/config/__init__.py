"""Training configs: their schema, loading and validation."""
