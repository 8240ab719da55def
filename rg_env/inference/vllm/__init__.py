"""A vLLM server: client, plugin, weight transfer."""
