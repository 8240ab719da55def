"""Tests of `benchmarks/gpu.py` and `benchmarks/multi_gpu.py`, which check GPU machines, on a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest
from forked_python import PYTHON

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
@pytest.mark.usefixtures("forks")
def test_a_failed_check_is_reported() -> None:
    """The line has the reason, and the exit code is 1."""
    code = (
        f"import runpy, sys\nsys.argv = {[str(SCRIPT), '--shapes', 'tiny', '--max-tokens', '4']!r}\n"
        f"module = runpy.run_path({str(SCRIPT)!r}, run_name='gpu')\n"
        "module['main'].__globals__['check_engine'] = lambda *_: (_ for _ in ()).throw(module['Failed']('no parity'))\n"
        "names = ('check_attention', 'check_trainer', 'check_trl')\n"
        "module['main'].__globals__.update(dict.fromkeys(names, lambda *_: 'fine'), has=lambda package: False)\n"
        "sys.exit(module['main']())\n"
    )
    done = subprocess.run([*PYTHON, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1, done.stderr[-3000:]
    assert "| engine, tiny | **FAILED**: no parity |" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 of 3 checks passed"


MULTI = SCRIPT.with_name("multi_gpu.py")


@pytest.mark.slow
@pytest.mark.full_matrix  # tests/training compares such steps as well
@pytest.mark.timeout(600)
def test_sharded_training_takes_the_first_step_of_one_process() -> None:
    """With ZeRO-3 on two processes, the first update equals that of one process."""
    command = [sys.executable, str(MULTI), "--shape", "tiny", "--only", "zero3", "--without", "vllm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "| zero3 | first update differs by " in done.stdout
    assert done.stdout.splitlines()[-1] == "1 of 1 checks passed"


@pytest.mark.slow
def test_another_first_step_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small change to one tensor fails the check."""
    monkeypatch.syspath_prepend(str(MULTI.parent))
    import multi_gpu

    runs = multi_gpu.Runs(tmp_path, "tiny", None, 2, 8)
    first = {name: tensor + 1e-3 for name, tensor in runs.before.items()}
    for name, change in (("single", 0.0), ("same", 0.0), ("other", 2e-4)):
        (tmp_path / name).mkdir()
        changed = {**first, "model.norm.weight": first["model.norm.weight"] + change}
        multi_gpu.save_file(changed, tmp_path / name / "weights.safetensors")
    monkeypatch.setattr(runs, "run", lambda *_, **__: {"peaks": [0]})
    assert multi_gpu.checked_update(runs, "same") == "first update differs by 0.0e+00"
    with pytest.raises(multi_gpu.Failed, match="the first update differs from that of one process by"):
        multi_gpu.checked_update(runs, "other")
