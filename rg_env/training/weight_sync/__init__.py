"""The weights sent to a vLLM server, and their transfer."""
