"""Run Python code in its own process or with a full disk, and import the examples."""

import contextlib
import importlib.util
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def without_progress(errors: str) -> str:
    """Remove the lines that a slow machine prints while it generates rows."""
    return "".join(line for line in errors.splitlines(keepends=True) if not line.startswith("generating rows: "))


def run_code(
    code: str, *arguments: object, cwd: Path | None = None, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `code` with these arguments; its environment is this process's environment plus `environment`. Standard error
    is returned without the progress of generating rows."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", code, *map(str, arguments)]
    options: dict[str, Any] = {"cwd": cwd, "env": {**os.environ, **environment}, "check": check}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    done.stderr = without_progress(done.stderr)
    return done


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Prevent this process from writing files larger than `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def example_module(name: str) -> Any:
    """Import the example `name`, without running it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
