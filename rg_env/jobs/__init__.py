"""Jobs: launching a server and a trainer together, Slurm scripts, sweeps, and diagnosing a machine."""
