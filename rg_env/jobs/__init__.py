"""Runs on machines: starting a server and a trainer together, Slurm, sweeps, and what a machine lacks."""
