"""Readers of answers: numbers, expressions, formulas, durations."""
