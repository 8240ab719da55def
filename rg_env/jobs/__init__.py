"""Launch a server and a trainer together, write Slurm scripts, run sweeps, and diagnose a machine."""
