"""Plots of training runs and of evaluations."""
