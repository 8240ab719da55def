"""Argument parsing for the `rg-env` command line, with one module per command."""
