"""Evaluations during training."""
