"""Jobs: launching a server and a trainer together, writing Slurm scripts, running sweeps, and diagnosing a machine."""
