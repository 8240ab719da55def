"""For all tests: the process is set up as programs of rg_env are, before torch is imported."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # see rg_env.commands.prepare_process
