"""The embedded engine, which generates with a transformers model in the same process, and its HTTP server."""
