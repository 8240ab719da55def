"""Batch scripts for Slurm."""
