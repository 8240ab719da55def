"""The policy, its log-probabilities, the GRPO loss, and the optimizers."""

LOGITS_PER_CHUNK = 2**27
"""Maximum number of logits in memory at once (`logprobs`), enough to keep a GPU busy."""
