"""The command that starts vLLM, which is the same for training, evaluations, `rg-env launch` and Slurm scripts."""

import contextlib
import itertools
import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rg_env as package
from rg_env.core.processes import Command, entered
from rg_env.errors import InputError
from rg_env.inference.machine import Machine
from rg_env.inference.vllm.command import parallel_sizes, serve_command, served_name, start_hint, vllm_command
from rg_env.jobs.launch import LaunchOptions, make_commands
from rg_env.jobs.slurm import SlurmJob, sbatch_script
from rg_env.tiny import POLICY_DIR

NODE = Machine(gpus=("0", "1"), vllm="0.32.0", programs=Path("bin"))
CPU = Machine(gpus=(), vllm="0.32.0+cpu", programs=Path("bin"))
CONFIG = "model: {name: tiny}\ntasks: {leg_counting: {}}\nengine: {kind: vllm}\ntraining: {max_tokens: 90}\n"


class Started(Exception):
    """Raised instead of starting vLLM."""


def _options(command: Command) -> dict[str, str]:
    """Return the value of each of vLLM's options. As in vLLM, the last one counts."""
    words = command.arguments[command.arguments.index("--model") :]
    return {name: value for name, value in itertools.pairwise(words) if name.startswith("--")}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Command]:
    """Return a function that runs `rg-env` with arguments and returns the command of the vLLM server it starts."""
    commands: list[Command] = []

    def start(command: Command, *_: Any) -> None:
        commands.append(command)
        raise Started

    def execve(_: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        start(Command(arguments, environment))

    monkeypatch.setattr("os.execve", execve)
    monkeypatch.setattr("rg_env.evaluation.local_models.ProcessGroup", start)
    monkeypatch.setattr(Machine, "check_installed", lambda self, *programs: None)
    monkeypatch.setattr("rg_env.inference.machine.machine_gpus", lambda: NODE.gpus)

    def run(*arguments: str, machine: Machine = NODE) -> Command:
        from rg_env.cli.main import run

        monkeypatch.setattr(Machine, "here", classmethod(lambda cls: machine))
        with contextlib.chdir(tmp_path), pytest.raises((Started, BaseExceptionGroup)):
            run(arguments)
        return commands.pop()

    return run


def test_all_commands_start_servers_that_sample_from_the_same_distribution(
    started: Callable[..., Command], tmp_path: Path
) -> None:
    """The servers of training, `launch`, Slurm scripts, evaluations and probes differ only in whether they accept
    weights, and in their sizes."""
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/zero3_multinode.yaml").touch()
    with contextlib.chdir(tmp_path):
        launch = make_commands(LaunchOptions("run.yaml"), NODE).server.arguments
        script = sbatch_script(SlurmJob("run.yaml", gpus=4, time="60", nodes=2, vllm_gpus=2))
    (line,) = re.findall(r"^CUDA_VISIBLE_DEVICES=\$vllm_gpus (rg-env vllm .*) >>", script, re.MULTILINE)
    slurm = shlex.split(line.replace("$port", "19428"))
    trained = [started(*words[1:]) for words in (shlex.split(start_hint("tiny")), launch, slurm)]
    evaluations = [
        started("eval", "--models", "tiny", "--tasks", "gcd", "-n", "1"),
        started("probe", "--model", "tiny", "--tasks", "gcd", "--levels", "0", "-n", "1"),
    ]
    for command in (*trained, *evaluations):
        given = _options(command)
        assert (given["--model"], given["--host"]) == (str(POLICY_DIR), "127.0.0.1")
        assert (given["--generation-config"], given["--logprobs-mode"]) == ("vllm", "processed_logprobs")
        takes_weights = command in trained
        assert ("--weight-transfer-config" in given) == takes_weights
        assert (command.environment.get("VLLM_SERVER_DEV_MODE") == "1") == takes_weights
    assert _options(trained[2])["--port"] == "19428"
    assert _options(trained[2])["--tensor-parallel-size"] == "2"
    named = [file for file in Path(package.__file__).parent.rglob("*.py") if "api_server" in file.read_text()]
    assert [file.name for file in named] == ["command.py"]


@pytest.mark.parametrize(("gpus", "backend"), [(0, "rg_env_shm"), (1, "rg_env_shm"), (2, "nccl")])
def test_the_weight_transfer_backend_depends_on_the_number_of_gpus(
    gpus: int, backend: str, started: Callable[..., Command], environ: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU, vLLM uses float32 and a small cache. The user's options come last, so they take precedence."""
    environ(VLLM_CPU_KVCACHE_SPACE=None)
    monkeypatch.setattr("rg_env.inference.machine.machine_gpus", lambda: NODE.gpus[:gpus])
    own = ["--port", "9000", "--logprobs-mode", "raw_logprobs"]
    command = started("vllm", "tiny", *own, machine=NODE if gpus else CPU)
    given = _options(command)
    assert json.loads(given["--weight-transfer-config"]) == {"backend": backend}
    assert list(command.arguments[-4:]) == own
    assert ("--enforce-eager" in given, given.get("--dtype")) == ((False, None) if gpus else (True, "float32"))
    assert command.environment.get("VLLM_CPU_KVCACHE_SPACE") == (None if gpus else "1")
    environ(VLLM_CPU_KVCACHE_SPACE="4")
    assert vllm_command("tiny", on_gpu=False).environment["VLLM_CPU_KVCACHE_SPACE"] == "4"


@pytest.mark.parametrize(("ranks", "bound"), [({}, "16"), ({"r": 24, "rank_pattern": {"q_proj": 40}}, "64")])
def test_adapters_are_served_with_their_base_model(ranks: dict[str, Any], bound: str, tmp_path: Path) -> None:
    """vLLM is told the largest rank among the adapters."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/model", **ranks}))
    given = _options(vllm_command(str(tmp_path), on_gpu=True))
    assert (given["--model"], given["--max-lora-rank"]) == ("org/model", bound)
    assert given["--lora-modules"] == f"{served_name(str(tmp_path))}={tmp_path}"
    assert (served_name("org/model"), served_name("tiny")) == ("org/model", str(POLICY_DIR))


def test_the_printed_command_listens_on_this_machine_only() -> None:
    """Only options that differ from vLLM's defaults are printed."""
    command = serve_command("org/model", port=8001, max_model_len=512, parallel=(2, 1))
    expected = "rg-env vllm org/model --host 127.0.0.1 --port 8001 --max-model-len 512 --tensor-parallel-size 2"
    assert command == expected.split()
    assert start_hint("org/model").startswith(f"{entered('rg-env')} vllm org/model --host 127.0.0.1")


@pytest.mark.parametrize(
    ("heads", "groups", "given", "gpus", "expected"),
    [
        (28, 4, (None, None), 0, (1, 1)),
        (28, 4, (None, None), 8, (4, 2)),
        (28, 4, (2, None), 4, (2, 2)),
        (28, 4, (None, 4), 4, (1, 4)),
        (32, 8, (16, None), 16, (16, 1)),  # vLLM replicates key-value heads
        (14, 2, (4, None), 4, None),
        (12, 3, (2, None), 2, None),
    ],
)
def test_the_servers_gpus_are_divided_as_the_attention_heads_allow(
    tmp_path: Path, heads: int, groups: int, given: Any, gpus: int, expected: tuple[int, int] | None
) -> None:
    """GPUs that tensor parallelism cannot use get replicas. Sizes that do not divide the heads are an error."""
    config = {"text_config": {"num_attention_heads": heads, "num_key_value_heads": groups}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if expected:
        assert parallel_sizes(*given, gpus, str(tmp_path)) == expected
        return
    with pytest.raises(InputError, match=rf"must divide the number of attention heads \({heads}\)"):
        parallel_sizes(*given, gpus, str(tmp_path))


def test_the_server_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """A downloaded folder may contain a `vllm` of its own."""
    (tmp_path / "vllm.py").write_text("print('a stranger')")
    command = vllm_command("tiny", on_gpu=False).arguments
    options = command[1 : command.index("-m")]
    code = "import importlib.util as u; s = u.find_spec('vllm'); print(s and s.origin)"
    done = subprocess.run([command[0], *options, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(tmp_path) not in done.stdout
