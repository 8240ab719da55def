"""Inference: the embedded engine with its HTTP server, and the client of a vLLM server."""
