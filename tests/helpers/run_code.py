"""Run Python code in its own process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_code(
    code: str, *arguments: object, cwd: Path | None = None, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` with these arguments; its environment is this process's environment plus `environment`."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", code, *map(str, arguments)]
    options: dict[str, Any] = {"cwd": cwd, "env": {**os.environ, **environment}, "check": check}
    return subprocess.run(command, capture_output=True, text=True, **options)
