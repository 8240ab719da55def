"""Jobs: server and trainer launched together, Slurm scripts, sweeps, and diagnosis of a machine."""
