"""Training with the newest versions of all packages, and with the lowest that pyproject.toml allows.

CI runs the main job and the tests that use most of the interfaces of torch, transformers, PEFT, TRL and Verifiers. All
quick tests of the same folders are marked `full_matrix`.
"""

import json
from pathlib import Path

import pytest
from release_checks import run
from release_environments import ROOT, TRAINING, Make
from run_metrics import results_of

from rg_env.evaluation.results import read_results

MAIN_JOB = """
import json, sys
from rg_env.cli.main import run
sys.exit(next((code for code in map(run, json.loads(sys.argv[1])) if code), 0))
"""
"""Runs the given commands in one process, until one fails."""
FILES = (
    "adapters/test_v0.py", "adapters/test_v1_training.py", "inference/test_engine.py", "publish/test_adapters.py",
    "publish/test_weights.py", "training/test_checkpoints.py", "training/test_liger.py", "training/test_lm_head.py",
    "training/test_load_policy.py", "training/test_logprobs.py", "training/test_optimizer.py",
)  # fmt: skip
FOLDERS = ("adapters", "inference", "publish", "training")

pytestmark = [
    pytest.mark.network,
    pytest.mark.timeout(1800),
    pytest.mark.parametrize("versions", TRAINING),
]


def test_the_main_job(versions: str, environment: Make, tmp_path: Path) -> None:
    """The tiny policy learns in three steps, and its checkpoint is evaluated."""
    config = ROOT / "configs" / "train" / "tiny.yaml"
    train = ("train", str(config), "training.max_steps=3", "evaluation.every=0", "output.dir=run")
    evaluate = ("eval", "--models", "run/checkpoint-3", "-n", "20", "--output-dir", "scores")
    command = (environment(versions) / "python", "-c", MAIN_JOB, json.dumps([train, evaluate]))
    done = run("env", "OMP_NUM_THREADS=1", *command, cwd=tmp_path, timeout=1500)
    assert done.returncode == 0, done.stderr
    results = results_of(tmp_path / "run")
    assert results["eval_after"]["accuracy"] - results["eval_before"]["accuracy"] > 0.2
    (scores,) = (tmp_path / "scores").glob("results_all_tasks_*.json")
    evaluated = read_results(scores).tasks["leg_counting"].scores
    assert (evaluated.n, evaluated.failed) == (20, 0)
    installed = json.loads((tmp_path / "run" / "manifest.json").read_text())["versions"]
    (lowest,) = (line for line in (ROOT / "pyproject.toml").read_text().split('"') if line.startswith("torch>="))
    assert installed["torch"].startswith(lowest.removeprefix("torch>=")) == (versions == "lowest")


@pytest.mark.parametrize("tests", [FILES, pytest.param(FOLDERS, marks=pytest.mark.full_matrix)], ids=["main", "all"])
def test_the_quick_tests(versions: str, tests: tuple[str, ...], environment: Make, tmp_path: Path) -> None:
    """The quick tests pass. With the lowest versions, other packages are the newest, and their warnings of deprecated
    interfaces are ignored."""
    skipped = ROOT / "tests" / "training" / "test_main_job.py"
    warnings = ("-W", "ignore::DeprecationWarning") if versions == "lowest" else ()
    options = ("-q", "--durations=10", "-p", "no:cacheprovider", *warnings, "--ignore", skipped)
    places = ("--rootdir", ROOT, "-c", ROOT / "pyproject.toml", *(ROOT / "tests" / each for each in tests))
    command = (environment(versions) / "pytest", *options, *places)
    done = run("env", "OMP_NUM_THREADS=1", *command, cwd=tmp_path, timeout=1500)
    print(done.stdout[-5000:])
    assert done.returncode == 0, done.stderr[-1000:]
