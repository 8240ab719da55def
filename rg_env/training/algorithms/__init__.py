"""The policy, its log-probabilities, the GRPO loss, and the optimizers."""
