"""Sending the trainer's weights to a vLLM server, and proving that they arrived."""
