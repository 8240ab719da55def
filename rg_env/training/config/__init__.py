"""Run configuration: schema, files, checks, conversion."""
