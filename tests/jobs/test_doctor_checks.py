"""Tests of the doctor's checks of software, GPUs, models, batches, prompts and the machine, on made-up findings."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.processes import Finished
from rg_env.jobs.doctor import machine
from rg_env.jobs.doctor.machine import Check, PlannedRun, closing_line
from rg_env.jobs.doctor.model import (
    Model,
    PromptLengths,
    cached_tokens,
    check_batch,
    check_memory,
    check_model,
    is_cached,
    judge_prompts,
    preset_for,
)
from rg_env.jobs.launch import longest_sequence
from rg_env.tiny import POLICY_DIR
from rg_env.training.config.schema import EvaluationConfig
from rg_env.training.memory_estimate import ModelShape

GIB, MIB = 2**30, 2**20
NO_KERNELS = "CUDA error: no kernel image is available for execution on the device"
# Output of nvidia-smi for the fields that the doctor queries.
TWO_GPUS = (
    "0, NVIDIA A100-SXM4-80GB, 81920 MiB, 3 MiB, 550.54.15, Disabled\n"
    "1, NVIDIA A100-SXM4-80GB, 81920 MiB, 74211 MiB, 550.54.15, Disabled\n"
)
CONSUMER = "0, NVIDIA GeForce RTX 4090, 24564 MiB, 412 MiB, 560.35.03, [N/A]\n"
MIG = "0, NVIDIA H100 80GB HBM3, 81559 MiB, [Insufficient Permissions], 535.161.08, Enabled\n"
BROKEN = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that ...\n\n"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.127\n"
LOST = TWO_GPUS.splitlines()[0] + "\nUnable to determine the device handle for GPU1: GPU is lost.\n"
SEVEN_B = Model("7B", None, ModelShape(7_615_616_512, 28, 3584, 152_064, 512), 32_768)
KEYS = {"host": "engine.host", "port": "engine.port", "engine": "engine.kind", "output_dir": "output.dir"}


def planned(processes: int = 1, **options: Any) -> PlannedRun:
    """Return a run with these options and a model other than the tiny policy."""
    given = {KEYS.get(name, f"training.{name}"): value for name, value in options.items()}
    return PlannedRun.of_options({"model.name": "org/model", **given}, processes)


VLLM = planned(engine="vllm")
NOT_REQUESTED = PlannedRun.of_options({})


def is_like(check: Check, pattern: str) -> None:
    """Check that a line matches `pattern`: the status, then parts of the finding and the fix, separated by
    asterisks."""
    assert fnmatchcase(check.line(), f"{pattern}*"), check.line()


def probe(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return what `probe_torch` reports on a machine with `devices`."""
    whole = {"capability": [8, 0], "free": 80 * GIB, "problem": ""}
    all_devices = [{"index": index, **whole, **device} for index, device in enumerate(devices)]
    return {"version": "2.8.0", "cuda": "12.8", "problem": "", "devices": all_devices, **changes}


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, environ: Callable[..., None]) -> Callable[..., machine.Gpus]:
    """Return a function that gives the detected GPUs if `nvidia-smi` prints `output` and torch reports `found`."""

    environ(CUDA_VISIBLE_DEVICES=None)

    def gpus(output: str, code: int | None = 0, found: dict[str, Any] | None = None) -> machine.Gpus:
        monkeypatch.setattr(machine, "run", lambda *_: Finished(code, output))
        monkeypatch.setattr(machine, "run_python", lambda *_: Finished(0, json.dumps(found or probe())))
        return machine.ask_gpus()

    return gpus


@pytest.mark.parametrize(
    ("output", "code", "found", "run", "pattern"),
    [
        # a broken driver is fatal only with vLLM, because the embedded engine can use the CPU
        (TWO_GPUS, 0, probe({}, {}), VLLM, "ok *1, NVIDIA A100-SXM4-80GB, 81920 MiB, 74211 MiB, 550.54.15*on 2 GPUs"),
        (CONSUMER, 0, probe({}), planned(), "ok *RTX 4090"),
        (MIG, 0, probe({}), planned(), "warning *MIG is on*NCCL"),
        ("No devices were found", 6, probe(), planned(), "ok *no NVIDIA GPU"),
        (BROKEN, 9, probe(), VLLM, "failed *couldn't communicate with the NVIDIA driver*fix: reinstall"),
        (BROKEN, 9, probe(), planned(), "warning *training would use the CPU*fix: reinstall"),
        (MISMATCH, 18, probe(), VLLM, "failed *Failed to initialize NVML: Driver/library"),
        (LOST, 15, probe({}), VLLM, "failed *GPU is lost"),
        ("", 9, probe(), VLLM, "failed *exit code 9"),
        # torch's view compared with the driver's
        (TWO_GPUS, 0, probe(cuda=None), planned(), "warning *CPU build*--gpu"),
        (TWO_GPUS, 0, probe(problem="driver too old"), planned(), "warning *too old*update"),
        (TWO_GPUS, 0, probe({"problem": NO_KERNELS}), planned(), "failed *no kernel image*torch build"),
        (TWO_GPUS, 0, probe({}, {"problem": "no memory"}), planned(), "failed *GPU 1 does not*CUDA_VISIBLE_DEVICES"),
        (CONSUMER, 0, probe({"capability": [7, 5]}), planned(), "warning *no native bf16*bf16=false"),
        # each process needs a GPU, and so does a server that is to be started on this machine
        (TWO_GPUS, 0, probe({}, {}), planned(2), "ok "),
        (TWO_GPUS, 0, probe({}, {}), planned(3), "failed *3 processes, but torch sees 2 GPUs*--processes 2"),
        (TWO_GPUS, 0, probe({}, {}), planned(2, engine="vllm"), "failed *one for vLLM*engine.kind=embedded"),
        (TWO_GPUS, 0, probe({}, {}), planned(2, engine="vllm", host="10.0.0.2"), "ok "),
    ],
)
def test_gpus(ask: Callable[..., machine.Gpus], output: str, code: int, found: Any, run: Any, pattern: str) -> None:
    is_like(machine.check_gpus(ask(output, code, found), run), pattern)


def test_hidden_gpus(ask: Callable[..., machine.Gpus], environ: Callable[..., None]) -> None:
    environ(CUDA_VISIBLE_DEVICES="")
    is_like(machine.check_gpus(ask(TWO_GPUS), planned()), "warning *CUDA_VISIBLE_DEVICES hides every GPU*unset")


REQUIREMENTS = [
    "verifiers>=0.1.2",
    "verifiers==0.1.6.post0; extra == 'train'",
    "torch<2.10,>=2.8; extra == 'train'",
    "vllm<0.11.1; extra == 'vllm'",
    "winonly>=1; sys_platform == 'nowhere' and extra == 'train'",
]


def packages(installed: dict[str, str], run: PlannedRun) -> Check:
    return machine.check_packages(run, REQUIREMENTS, lambda name: installed.get(name, ""))


def batch(processes: int = 1, **options: int) -> Check:
    return check_batch(planned(processes, **options).with_model("tiny"))


def memory(run: PlannedRun, free: int, *lengths: list[int]) -> Check:
    training = run.config.training.model_copy(update={"bf16": True, "gradient_checkpointing": False})
    run = replace(run, config=run.config.model_copy(update={"training": training}))
    return check_memory(run, SEVEN_B, PromptLengths([100, 1024], *lengths), free * 10**9, "on GPU 0")


def test_memory_is_estimated_for_the_micro_batch_that_is_computed() -> None:
    """A process computes only its share of a step if that is smaller than `per_device_train_batch_size`."""
    sizes = {"rollouts_per_step": 32, "num_generations": 8}
    large, share = (memory(planned(8, **sizes, per_device_train_batch_size=size), 100).finding for size in (64, 4))
    assert large == share


def prompts(context: int, *lengths: list[int], evaluation_tokens: int | None = None) -> Check:
    run = planned(max_prompt_length=50, max_tokens=30)
    config = run.config.model_copy(update={"evaluation": EvaluationConfig(max_tokens=evaluation_tokens)})
    return judge_prompts(replace(run, config=config), context, PromptLengths(*lengths))


HAVE = {"verifiers": "0.1.6.post0", "torch": "2.8.0+cu128"}
MANY = [[], [1024] * 256]  # prompts of evaluations
THREE = planned(3, engine="vllm")


@pytest.mark.parametrize(
    ("check", "pattern"),
    [
        # a version that is too old is fatal, one newer than tested is not
        (machine.check_python("3.11.7"), "ok *3.11.7"),
        (machine.check_python("3.99.1"), "warning *is not a tested version*fix: use Python 3.11"),
        (machine.check_python("3.10.4"), "failed *requires >=3.11*fix: "),
        # ranges are checked only for the extras that the run needs, and for this platform
        (packages(HAVE, planned()), "ok *all 3 packages are within"),
        (packages(HAVE, VLLM), "warning *vllm is not installed*./setup.sh --gpu"),
        (packages({**HAVE, "torch": "2.11.0", "vllm": "0.12"}, VLLM),
         "warning *torch 2.11.0 (<2.10,>=2.8), vllm 0.12 (<0.11.1); fix: *pip install *?train?"),
        # a broken torch is fatal even if no training was requested
        (machine.check_trainer(machine.Gpus(torch_problem="signal 11"), NOT_REQUESTED), "failed *signal 11*reinstall"),
        # the batch must be divisible among all processes
        (batch(), "ok *128 rollouts per step: 16 prompts x 8, in 2 micro-batches on each of 1 process"),
        (batch(3), "failed *not divisible by 3 processes*training.rollouts_per_step=120 or 144"),
        (batch(4), "ok *128 rollouts per step: 16 prompts x 8, in 1 micro-batch on each of 4 processes"),
        (batch(2, per_device_train_batch_size=24),
         "failed *does not divide each process's 64 rollouts*training.per_device_train_batch_size=16"),
        (batch(num_generations=12), "failed *not divisible by num_generations=12*rollouts_per_step=192"),
        # a smaller micro-batch is suggested if it is enough, because it does not change a step
        (memory(THREE, 130), "ok *on GPU 0 (estimate: state 42 GB"),
        (memory(THREE, 100), "failed *about 104 GB*training.per_device_train_batch_size=4 (the number of rollouts *"),
        (memory(THREE, 30), "failed *about 104 GB*more --processes"),
        (memory(planned(), 80), "failed *engine's cache 30 GB*engine.kind=vllm"),
        (memory(planned(), 140, *MANY), "failed *engine's cache in evaluations 120 GB)*fix: use LoRA, a smaller model"),
        (memory(planned(), 208, *MANY), "failed *engine's cache in evaluations 120 GB)*engine.max_batch_size=256 "),
        # prompts are checked against the limit and, with the completion, against the model's context
        (prompts(128, [20], [50]), "ok *all 2 prompts are within 50 tokens; the longest has 50"),
        (prompts(128, [20, 51]), "failed *1 of 2 prompts is longer*training.max_prompt_length=51"),
        (prompts(70, [20, 50]), "failed *exceeds *context of 70*training.max_tokens=20"),
        (prompts(128, [20], [50], [10, 98]), "ok *has 50; evaluations use 2 more prompts, the longest of which has 98"),
        (prompts(127, [20], [50], [10, 98]), "failed *98 tokens; with 30 new*evaluation.max_tokens=29,"),
        (prompts(128, [20], [50], [10, 98], evaluation_tokens=31), "failed *with 31 new*evaluation.max_tokens=30,"),
        (prompts(128, [20], [50], evaluation_tokens=79), "failed *50 tokens; *79 new*evaluation.max_tokens=78,"),
        (prompts(98, [20], [50], [10, 98], evaluation_tokens=5), "failed *98 tokens; *5 new tokens*other tasks, or"),
        # all prompts of a step are sent in one request, so the number of rollouts does not matter
        (machine.check_open_files((256, 1048576)), "failed *needs 512*ulimit -n 65536"),
        (machine.check_open_files((256, 4096)), "failed *needs 512*ulimit -n 4096"),
        (machine.check_open_files((256, 256)), "failed *needs 512*administrator"),
        (machine.check_open_files((1024, 1024)), "ok "),
        (machine.check_open_files((-1, -1)), "ok "),
        # Docker's default of 64 MB is too little for several processes
        (machine.check_shared_memory(64 * MIB), "warning *67 MB*--shm-size"),
        (machine.check_shared_memory(8 * GIB), "ok *8.6 GB"),
        # a module that cannot be imported
        (machine.check_import("no_such_module", "reinstall"), "failed *No module named *; fix: reinstall"),
    ],
)  # fmt: skip
def test_findings_and_fixes(check: Check, pattern: str) -> None:
    is_like(check, pattern)


def test_a_check_is_printed_on_one_line() -> None:
    line = Check("failed", "one\ntwo", "do\tthat", name="ports").line()
    assert line == "failed   ports         one two; fix: do that"
    assert closing_line([Check("ok", ""), Check("warning", ""), Check("skipped", "")]) == ("1 ok, 1 warning, 0 failed")


def test_a_trainer_that_cannot_be_imported() -> None:
    """The line names the missing package; it is a failure only if a run is described."""
    code = """
import sys
sys.modules["accelerate"] = None
from rg_env.jobs.doctor import machine
from rg_env.jobs.doctor.machine import PlannedRun
for given in ({"model.name": "org/model"}, {}):
    gpus = machine.Gpus(torch_problem="No module named 'torch'")
    print(machine.check_trainer(gpus, PlannedRun.of_options(given)).line())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    failed, warning = done.stdout.splitlines()
    assert failed.startswith("failed ")
    assert fnmatchcase(warning, "warning *requires accelerate, which is not installed; fix: *")


def test_models_that_cannot_be_trained(tmp_path: Path) -> None:
    """Damaged or unsuitable model folders are detected without loading the weights."""
    folder = shutil.copytree(POLICY_DIR, tmp_path / "model")
    good = check_model(str(folder))
    is_like(good, "ok *0.89 M parameters")
    assert good.value.shape.parameters == 885_888  # tied weights count once
    config, weights = folder / "config.json", folder / "model.safetensors"
    text, index = config.read_text(), '{"weight_map": {"a": "part-1.safetensors"}}'
    for spoil, words in (
        (lambda: config.write_text(json.dumps(json.loads(text) | {"num_hidden_layers": 8})), "model.layers.4.*belongs"),
        (lambda: config.write_text(text) and weights.write_bytes(weights.read_bytes()[:-100]), "cannot be read"),
        (lambda: weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "cannot be read"),
        (weights.unlink, "does not contain model.safetensors*copy or download"),
        (lambda: (folder / "model.safetensors.index.json").write_text(index), "lacks part-1.safetensors"),
        ((folder / "chat_template.jinja").unlink, "no chat template*instruction-tuned"),
    ):
        spoil()
        is_like(check_model(str(folder)), f"failed *{words}")
    is_like(check_model(str(tmp_path)), "failed *is not a model folder*pass a folder")


def test_weights_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted download is not complete."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert not is_cached("someone/model")
    repository = tmp_path / "models--someone--model"
    (snapshot := repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    names = ["1.safetensors", "2.safetensors"]
    (snapshot / "config.json").touch()
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(enumerate(names))}))
    (snapshot / names[0]).touch()
    assert not is_cached("someone/model")
    (snapshot / names[1]).touch()
    assert is_cached("someone/model")


@pytest.mark.parametrize(
    ("given", "gigabytes", "presets"),
    [
        ({"model.name": "Qwen/Qwen2.5-1.5B-Instruct"}, 15.8, ["qwen2.5-1.5b_16gb"]),
        ({"model.name": "Qwen/Qwen2.5-1.5B-Instruct", "lora.r": 64}, 15.8, ["qwen2.5-1.5b_16gb"]),
        ({"model.name": "Qwen/Qwen2.5-7B-Instruct"}, 25.2, ["qwen2.5-7b_24gb"]),
        # another model
        ({"model.name": "Qwen/Qwen2.5-7B-Instruct", "lora.r": 16}, 15.8, ["qwen2.5-3b", "qwen2.5-3b_16gb"]),
        ({"model.name": "Qwen/Qwen2.5-7B-Instruct"}, 11.9, []),
    ],
)
def test_a_preset_for_small_gpus_is_recommended(given: dict[str, Any], gigabytes: float, presets: list[str]) -> None:
    """A preset for the same model and method is preferred, if one fits the memory."""
    folder = Path(__file__).parents[2] / "configs" / "models"
    found = preset_for(PlannedRun.of_options(given).config, int(gigabytes * 1e9), folder)
    assert [file.stem for file in found] == presets


def test_token_capacity_that_engines_need() -> None:
    """The embedded engine also caches evaluations, and a server must accept their longest prompts."""
    lengths = PromptLengths([20], [50], [90] * 9)

    def run(engine: str = "embedded", **evaluation: Any) -> PlannedRun:
        config = planned(engine=engine, max_prompt_length=50, max_tokens=30, rollouts_per_step=16).config
        return PlannedRun(config.model_copy(update={"evaluation": EvaluationConfig(**evaluation)}))

    assert cached_tokens(run(), lengths) == (16 * 80, 2 * 10 * 120)
    assert cached_tokens(run(rollouts_per_example=4, max_tokens=60), lengths) == (16 * 80, 5 * 10 * 150)
    assert cached_tokens(run(rollouts_per_example=99), lengths) == (16 * 80, 512 * 120)
    assert cached_tokens(run(before=False, after=False, every=0), lengths) == (16 * 80, 0)
    assert cached_tokens(run("vllm"), lengths) == (0, 0)
    assert longest_sequence(run().config, ()) == 80
    assert longest_sequence(run(max_tokens=60).config, ()) == 110
    assert longest_sequence(run(max_tokens=60).config, lengths.others) == 150


def test_programs_that_listen_on_the_servers_port(serve: Callable[..., Any]) -> None:
    """The port may have no server, a suitable one, one with another model or too short a context, or another
    program."""
    model = {"id": "served", "owned_by": "vllm", "max_model_len": 512}
    vllm = {"health": (200, {}), "models": (200, {"data": [model]}), "version": (200, {"version": "0.32.0"})}

    def check(port: int, model: str = "served", tokens: int = 512) -> Check:
        return machine.check_server(planned(engine="vllm", port=port), model, tokens)

    good = serve(**vllm, get_world_size=(200, {"world_size": 2})).port
    is_like(check(good), "ok *serves 'served' with up to 512 tokens on 2 workers")
    is_like(check(good, model="mine"), "failed *serves 'served', not 'mine'*rg-env vllm mine")
    is_like(check(good, tokens=600), "failed *accepts 512 tokens*--max-model-len 600")
    is_like(check(serve(health=(200, {})).port), "failed *is not a vLLM server*another engine.port")
    is_like(check(serve(**vllm).port), "failed *does not accept weights*another engine.port")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        is_like(machine.check_port(port), f"warning *{port}: Address already in use*any free port")
    is_like(machine.check_port(port), f"ok *{port} is free")
    is_like(check(port), f"warning *nothing is listening*rg-env vllm served --host 127.0.0.1 --port {port}")
    away = planned(engine="vllm", host="nowhere.invalid")
    is_like(machine.check_server(away, "served", 1), "warning *nothing is listening*correct engine.host")
    assert machine.check_server(planned(), None, 1).status == "skipped"


def test_disk_space_for_checkpoints(tmp_path: Path) -> None:
    """Too little space for one checkpoint is a failure, and too little for all of them a warning."""
    free = shutil.disk_usage(tmp_path).free
    run = planned(output_dir=str(tmp_path / "run"))  # saves a checkpoint every 100 of 200 steps
    is_like(machine.check_output(run, 1000), "ok *for 2 checkpoints of 0 MB")
    is_like(machine.check_output(run, free * 2 // 3), "warning *not enough for*save_total_limit")
    is_like(machine.check_output(run, 2 * free), "failed *not enough for*another output folder")
    (tmp_path / "file").touch()
    is_like(machine.check_output(planned(output_dir=str(tmp_path)), 1), "failed *not empty*another output folder")


def test_logins_are_needed_only_if_they_are_used(tmp_path: Path, environ: Callable[..., None]) -> None:
    """A damaged netrc file is not quoted."""
    environ(WANDB_API_KEY=None, WANDB_MODE=None, NETRC=str(tmp_path / "netrc"), HOME=str(tmp_path), HF_TOKEN=None)

    def check(**given: Any) -> Check:
        run = PlannedRun.of_options({key.replace("__", "."): value for key, value in given.items()})
        return machine.check_logins(run)

    is_like(check(), "ok *no Hugging Face token")
    is_like(check(logging__report_to=["tensorboard", "wandb"]), "failed *wandb*not logged in*wandb login")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user passwerd s3cr3t-of-mine\n")
    assert "s3cr3t" not in check(logging__report_to=["wandb"]).line()
    is_like(check(hub__enabled=True, hub__repo_id="me/run"), "failed *HF_TOKEN")
