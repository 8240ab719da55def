"""Levels that rise with the policy's accuracy."""
