"""Generation, selection, splitting and caching of rows, and their manifest."""
