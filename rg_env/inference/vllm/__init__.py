"""The vLLM server: its client, plugin and weight transfer."""
