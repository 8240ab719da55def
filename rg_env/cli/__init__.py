"""The `rg-env` command line: argument parsing, in one module per command."""
