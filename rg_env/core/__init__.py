"""Tasks, rows, answer extraction, scoring and rewards: everything that needs neither a model nor a framework.

Nothing in this layer imports torch, verifiers or vllm. reasoning_gym is imported only when a function needs it.
"""
