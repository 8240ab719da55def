"""Pictures of runs and results, and what may stand together in one."""
