"""The command `rg-env`: one module a command, parsing only."""
