"""Configuration files: parsing, where they are found, overrides, errors."""
