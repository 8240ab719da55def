"""vLLM server: client, plugin and weight transfer."""
