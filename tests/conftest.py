"""For all tests: the process is set up as programs of rg_env are, before torch is imported."""

import os
import tempfile
from pathlib import Path

# Rows that tests build are kept apart from the user's, for all test processes; their key holds the code's hash.
os.environ.setdefault("RG_ENV_CACHE", str(Path(tempfile.gettempdir()) / f"rg-env-tests-{os.environ.get('USER', '')}"))
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # see rg_env.commands.prepare_process
