"""Inference: the embedded engine with its HTTP server, and the vLLM client."""
