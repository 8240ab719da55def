"""Plots of training runs and evaluations."""
