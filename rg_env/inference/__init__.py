"""Where completions come from: the embedded engine, its in-process client, its HTTP server."""
