"""Solvers that graders need."""
