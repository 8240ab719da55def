"""Core in the terms of other frameworks, one file each. Core knows none of them."""
