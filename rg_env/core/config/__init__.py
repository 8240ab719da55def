"""Configuration files: lookup, parsing, overrides and errors."""
