"""Tasks, rows, extraction, scoring, rewards: everything that needs no model and no framework.

Nothing in this layer imports torch, verifiers or vllm, and reasoning_gym only when rows are built or scored.
"""
