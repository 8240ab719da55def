"""Tests of `benchmarks/gpu.py`, which checks a GPU machine, on a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
# Simulates a machine with only the packages that the script requires.
BARE = """
import importlib.abc, runpy, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        missing = {"verifiers", "reasoning_gym", "matplotlib", "openai", "starlette", "requests", "httpx"}
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert not {"verifiers", "reasoning_gym", "datasets", "trl"} & set(sys.modules), "imported without need"
"""


@pytest.mark.slow
def test_all_checks_pass_with_the_tiny_policy() -> None:
    """The script prints a line for each check and needs neither Verifiers, Reasoning Gym nor datasets."""
    arguments = [str(SCRIPT), "--shapes", "tiny", "--steps", "3", "--max-tokens", "12", "--without", "trl", "vllm"]
    done = subprocess.run(
        [sys.executable, "-c", BARE, *arguments], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows[1:]] == ["| attention, tiny", "| engine, tiny", "| trainer, tiny"]
    assert done.stdout.splitlines()[-1] == "3 of 3 checks passed"


@pytest.mark.slow
def test_a_failed_check_is_reported() -> None:
    """The line has the reason, and the exit code is 1."""
    code = (
        f"import runpy, sys\nsys.argv = {[str(SCRIPT), '--shapes', 'tiny', '--max-tokens', '4']!r}\n"
        f"module = runpy.run_path({str(SCRIPT)!r}, run_name='gpu')\n"
        "module['main'].__globals__['check_engine'] = lambda *_: (_ for _ in ()).throw(module['Failed']('no parity'))\n"
        "module['main'].__globals__['check_trainer'] = module['main'].__globals__['check_trl'] = lambda *_: 'fine'\n"
        "module['main'].__globals__['has'] = lambda package: False\n"
        "sys.exit(module['main']())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1, done.stderr[-3000:]
    assert "| engine, tiny | **FAILED**: no parity |" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 of 3 checks passed"
