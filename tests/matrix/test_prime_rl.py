"""The files for prime-rl through prime-rl's own command, which checks them, and says what each of its processes gets.

Needs a checkout of prime-rl, uv with Python 3.12, and the registry; no GPU, torch or vLLM. Skipped without a checkout:

    git clone https://github.com/PrimeIntellect-ai/prime-rl
    PRIME_RL_CHECKOUT=$PWD/prime-rl .venv/bin/pytest -m network tests/matrix/test_prime_rl.py
"""

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs" / "prime-rl"
CHECKOUT = os.environ.get("PRIME_RL_CHECKOUT", "")
SOURCES: dict[str, Any] = tomllib.loads((CONFIGS / "single_node.toml").read_text())["orchestrator"]
# What `rl --dry-run` imports beside the package of config classes.
NEEDED = ("verifiers>=0.3.1", "loguru", "psutil", "setproctitle", "jinja2")
COMMAND = "from prime_rl.entrypoints.rl import main; main()"

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(not CHECKOUT, reason="PRIME_RL_CHECKOUT names no checkout of prime-rl"),
    pytest.mark.skipif(not shutil.which("uv"), reason="uv is not on the PATH"),
]


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has prime-rl's config classes and the wheel of this package."""
    folder = tmp_path_factory.mktemp("prime-rl")
    run("uv", "build", "-q", "--wheel", "--out-dir", folder, ROOT)
    run("uv", "venv", "-q", "--python", "3.12", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    configs = Path(CHECKOUT).resolve() / "packages" / "prime-rl-configs"
    run("uv", "pip", "install", "-q", "--python", python, *NEEDED, configs, *folder.glob("*.whl"))
    return python


def dry_run(python: Path, folder: Path, *names: str, options: tuple[str, ...] = ()) -> Path:
    """The folder that `rl @ NAME ... --dry-run` leaves."""
    checkout = Path(CHECKOUT).resolve()
    paths = [checkout / "packages" / "prime-rl-configs" / "src", checkout / "src"]  # one package in two folders
    files = [part for name in names for part in ("@", CONFIGS / name)]
    where = ("--output-dir", folder, "--run.name", "run", "--dry-run")
    run(
        python, "-c", COMMAND, *files, *where, *options,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}, cwd=folder,
    )  # fmt: skip
    return folder / "run"


def check_sources(folder: Path) -> None:
    """Each environment's server gets its taskset as the file has it, played in its own process without a sandbox."""
    for split in ("train", "eval"):
        for source in SOURCES[split]["source"]:
            env = json.loads((folder / "configs" / "envs" / split / f"{source['name']}.json").read_text())["env"]
            for key, value in source["env"]["taskset"].items():
                if key != "gym":
                    assert env["taskset"][key] == value
            tasks = source["env"]["taskset"]["gym"]
            assert [
                {key: task[key] for key in asked} for task, asked in zip(env["taskset"]["gym"], tasks, strict=True)
            ] == tasks
            assert env["agent"]["runtime"]["type"] == "subprocess"


def test_one_node(python: Path, tmp_path: Path) -> None:
    folder = dry_run(python, tmp_path, "single_node.toml")
    check_sources(folder)
    orchestrator = json.loads((folder / "configs" / "orchestrator.json").read_text())
    assert orchestrator["renderer"] == {**orchestrator["renderer"], "name": "qwen3", "enable_thinking": False}
    assert {
        orchestrator["seq_len"],
        json.loads((folder / "configs" / "inference.json").read_text())["vllm"]["max_model_len"],
    } == {2048}


def test_several_nodes(python: Path, tmp_path: Path) -> None:
    """The job installs this package again after the sync that takes it out."""
    partition = ("--slurm.partition", "NAME")
    folder = dry_run(python, tmp_path, "single_node.toml", "multi_node.toml", options=partition)
    check_sources(folder)
    assert json.loads((folder / "configs" / "trainer.json").read_text())["model"]["name"] == "Qwen/Qwen3-8B"
    script = (folder / "rl.sbatch").read_text()
    assert "#SBATCH --nodes=2" in script
    assert 0 < script.index("uv sync") < script.index('uv pip install "$RG_ENV"')
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
