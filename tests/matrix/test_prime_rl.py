"""The configs for prime-rl with its dry run, which writes the config of each process; and the environment's server,
started and called as prime-rl does.

Needs a checkout of prime-rl, uv with Python 3.12, and the registry; no GPU, torch or vLLM. Skipped without a checkout:

    git clone https://github.com/PrimeIntellect-ai/prime-rl
    PRIME_RL_CHECKOUT=$PWD/prime-rl .venv/bin/pytest -m network tests/matrix/test_prime_rl.py
"""

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from release_environments import uv

from rg_env.core.data.dataset import build_splits

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs" / "prime-rl"
CHECKOUT = os.environ.get("PRIME_RL_CHECKOUT", "")
SOURCES: dict[str, Any] = tomllib.loads((CONFIGS / "single_node.toml").read_text())["orchestrator"]
# Packages that `rl --dry-run` imports in addition to the config classes.
NEEDED = ("verifiers>=0.3.1", "loguru", "psutil", "setproctitle", "jinja2")
# These scripts do the same as `env-server`, without its logging, which imports torch, and as the orchestrator.
SERVER = """
from prime_rl.configs.env_server import EnvServerConfig
from prime_rl.utils.config import cli
from verifiers.v1 import pool_serve_kwargs
from verifiers.v1.serve import env_config_data, serve_env

if __name__ == "__main__":  # its workers import this file
    config = cli(EnvServerConfig)
    options = {"address": config.serve.address, "max_concurrent": config.serve.max_concurrent}
    serve_env(**pool_serve_kwargs(config.serve.pool), **options, config_data=env_config_data(config.env))
"""
CLIENT = """
import asyncio, json, sys
from pathlib import Path
import verifiers.v1 as vf
from prime_rl.configs.orchestrator import OrchestratorConfig
from verifiers.v1.serve import EnvClient

async def main(path, split, name, url, number):
    config = OrchestratorConfig.model_validate_json(Path(path).read_text())
    (source,) = [source for part, source in config.env_sources if (part, source.resolved_name) == (split, name)]
    tasks = list(vf.load_taskset(source.env.taskset))
    assert len({task.key for task in tasks}) == len(tasks), "prime-rl's sampler needs unique keys"
    env = EnvClient(address=config.env_addresses[split, name])
    await env.wait_for_server_startup(timeout=120)
    to = {"client": vf.EvalClientConfig(base_url=url, api_key_var="KEY"), "model": "m"}
    sampling = vf.SamplingConfig(**source.sampling.to_sampling_args())
    runs = [env.run(task_data=task.data.model_dump(mode="json"), sampling=sampling, **to) for task in tasks[:number]]
    episodes = await asyncio.gather(*runs)
    print(json.dumps([[task.data.question, episode.ok, episode.traces[0].reward, episode.traces[0].metrics["accuracy"]]
                      for task, episode in zip(tasks, episodes)]))

asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))
"""
COMMAND = "from prime_rl.entrypoints.rl import main; main()"

pytestmark = [
    pytest.mark.network,
    pytest.mark.full_matrix,
    pytest.mark.skipif(not CHECKOUT, reason="PRIME_RL_CHECKOUT is not the path of a prime-rl checkout"),
]


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter that has prime-rl's config classes and the wheel of this package."""
    folder = tmp_path_factory.mktemp("prime-rl")
    uv("build", "-q", "--wheel", "--out-dir", folder, ROOT)
    uv("venv", "-q", "--python", "3.12", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    configs = Path(CHECKOUT).resolve() / "packages" / "prime-rl-configs"
    uv("pip", "install", "-q", "--python", python, *NEEDED, configs, *folder.glob("*.whl"))
    return python


def variables() -> dict[str, str]:
    checkout = Path(CHECKOUT).resolve()
    paths = [
        checkout / "packages" / "prime-rl-configs" / "src",
        checkout / "src",
    ]  # the package prime_rl is split over two folders
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "KEY": "none"}


def dry_run(python: Path, folder: Path, *names: str, options: tuple[str, ...] = ()) -> Path:
    """Run `rl @ NAME ... --dry-run`, and return its output folder."""
    files = [part for name in names for part in ("@", CONFIGS / name)]
    where = ("--output-dir", folder, "--run.name", "run", "--dry-run")
    run(python, "-c", COMMAND, *files, *where, *options, env=variables(), cwd=folder)
    return folder / "run"


def check_sources(folder: Path) -> None:
    """Check that each environment's server gets the taskset options of the file and runs without a sandbox."""
    for split in ("train", "eval"):
        for source in SOURCES[split]["source"]:
            env = json.loads((folder / "configs" / "envs" / split / f"{source['name']}.json").read_text())["env"]
            options = source["env"]["taskset"]
            assert {key: env["taskset"][key] for key in options} == options
            assert env["agent"]["runtime"]["type"] == "subprocess"


def test_one_node(python: Path, tmp_path: Path) -> None:
    folder = dry_run(python, tmp_path, "single_node.toml")
    check_sources(folder)
    orchestrator = json.loads((folder / "configs" / "orchestrator.json").read_text())
    assert orchestrator["renderer"] == {**orchestrator["renderer"], "name": "qwen3", "enable_thinking": False}
    inference = json.loads((folder / "configs" / "inference.json").read_text())
    assert orchestrator["seq_len"] == inference["vllm"]["max_model_len"] == 2048


def test_several_nodes(python: Path, tmp_path: Path) -> None:
    """The job script reinstalls this package after `uv sync`, which removes it."""
    partition = ("--slurm.partition", "NAME")
    folder = dry_run(python, tmp_path, "single_node.toml", "multi_node.toml", options=partition)
    check_sources(folder)
    assert json.loads((folder / "configs" / "trainer.json").read_text())["model"]["name"] == "Qwen/Qwen3-8B"
    script = (folder / "rl.sbatch").read_text()
    assert "#SBATCH --nodes=2" in script
    assert 0 < script.index("uv sync") < script.index('uv pip install "$RG_ENV"')
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(("split", "name"), [("train", "rg-env"), ("eval", "rg-env-eval")])
def test_an_environments_server_runs_the_orchestrators_tasks(
    python: Path, tmp_path: Path, split: str, name: str
) -> None:
    """The server has the same rows as rg_env, and answers get the rewards that the config sets."""
    configs = dry_run(python, tmp_path, "single_node.toml") / "configs"
    (taskset,) = [each["env"]["taskset"] for each in SOURCES[split]["source"] if each["name"] == name]
    counts = [taskset.get(f"num_{part}_examples", 0) if part == split else 0 for part in ("train", "eval")]
    train, evaluation, _ = build_splits(taskset["gym"], counts[0], counts[1], 0)
    rows = (train or evaluation)[:12]
    gold = {row["question"]: row["answer"] for row in rows}
    right = {row["question"] for row in rows[::2]}

    (tmp_path / "server.py").write_text(SERVER)
    command = [python, tmp_path / "server.py", "@", configs / "envs" / split / f"{name}.json"]
    server = subprocess.Popen([*map(str, command)], env=variables(), cwd=tmp_path)
    try:
        with ChatServer(lambda question: f"<answer>{gold[question] if question in right else 'no'}</answer>") as chat:
            arguments = (configs / "orchestrator.json", split, name, chat.url, str(len(rows)))
            done = run(python, "-c", CLIENT, *arguments, env=variables(), cwd=tmp_path, timeout=240)
    finally:
        server.terminate()
        server.wait(30)
    weight = taskset["rewards"].get("format", 0.0)
    expected = [[row["question"], True, float(row["question"] in right) + weight, float(row["question"] in right)]
                for row in rows]  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == expected
    sampling = SOURCES[split]["sampling"]
    assert {body["max_tokens"] for body in chat.requests} == {sampling["max_completion_tokens"]}
    assert len(chat.requests) == len(rows)
