"""Run Python code in its own process, and import the examples."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_code(
    code: str, *arguments: object, cwd: Path | None = None, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` with these arguments; its environment is this process's environment plus `environment`."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", code, *map(str, arguments)]
    options: dict[str, Any] = {"cwd": cwd, "env": {**os.environ, **environment}, "check": check}
    return subprocess.run(command, capture_output=True, text=True, **options)


def example_module(name: str) -> Any:
    """Import the example `name`, without running it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
