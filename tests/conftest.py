"""For all tests: the process is set up as programs of rg_env are, before torch is imported."""

import os
import tempfile
from pathlib import Path

# Rows that tests build are kept apart from the user's, for all test processes; their key holds the code's hash.
os.environ.setdefault("RG_ENV_CACHE", str(Path(tempfile.gettempdir()) / f"rg-env-tests-{os.environ.get('USER', '')}"))
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # see rg_env.commands.prepare_process
# Test processes share the cores: with all threads in each, they wait for one another more than they compute.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
