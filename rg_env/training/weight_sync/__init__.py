"""The weights that are sent to a vLLM server, and their transfer."""
