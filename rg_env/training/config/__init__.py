"""The configuration of a run: schema, files, checks, conversion."""
