"""The trainer's weights to a vLLM server, with proof that they arrived."""
