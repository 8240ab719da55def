"""The doctor's checks of software, GPUs, models, batches, prompts and this machine, on fabricated findings."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from loopback import LoopbackServer
from packaging.requirements import Requirement
from starlette.responses import JSONResponse
from starlette.routing import Route

from rg_env.core.processes import Finished
from rg_env.jobs.doctor import Check, PlannedRun, closing_line, machine
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
from rg_env.training.memory import ModelShape

GIB = 2**30
# What nvidia-smi prints for the fields that the doctor queries.
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
    """A run that options describe, of a model other than the tiny one."""
    given = {KEYS.get(name, f"training.{name}"): value for name, value in options.items()}
    return PlannedRun.of_options({"model.name": "org/model", **given}, processes)


VLLM = planned(engine="vllm")
NOT_REQUESTED = PlannedRun.of_options({})


def smi(output: str, code: int | None = 0) -> machine.Smi:
    return machine.parse_smi(Finished(code, output))


def probe(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What `probe_torch` returns on a machine with `devices`."""
    whole = {"capability": [8, 0], "free": 80 * GIB, "problem": ""}
    all_devices = [{"index": index, **whole, **device} for index, device in enumerate(devices)]
    basics = {"version": "2.8.0", "cuda": "12.8", "mps": False, "problem": ""}
    return {**basics, "devices": all_devices, "apart": [], **changes}


def is_like(check: Check, pattern: str) -> None:
    """`pattern` has the status, and words of the finding and the fix, between asterisks."""
    assert fnmatchcase(check.line(), f"{pattern}*"), check.line()


def driver(output: str, code: int | None = 0, run: PlannedRun = VLLM) -> Check:
    return machine.check_driver(smi(output, code), run)


def torch(found: dict[str, Any], driver_output: str = TWO_GPUS, visible: str | None = None) -> Check:
    return machine.check_torch(found, "", smi(driver_output, 0 if driver_output else None), planned(), visible)


def no_torch(finished: Finished, run: PlannedRun) -> Check:
    return machine.check_torch(None, finished.reason, smi(""), run)


def count(run: PlannedRun, seen: int) -> Check:
    return machine.check_count(probe(*[{}] * seen), smi(TWO_GPUS), run, server_runs=False)


def python(version: str) -> Check:
    return machine.check_python(version, ">=3.11", ["3.11", "3.12"])


REQUIREMENTS = [
    Requirement(text)
    for text in (
        "verifiers>=0.1.2",
        "verifiers==0.1.6.post0; extra == 'train'",
        "torch<2.10,>=2.8; extra == 'train'",
        "vllm<0.11.1; extra == 'vllm'",
        "winonly>=1; sys_platform == 'nowhere' and extra == 'train'",
    )
]


def packages(installed: dict[str, str], *extras: str) -> Check:
    return machine.check_packages(REQUIREMENTS, ["train", *extras], lambda name: installed.get(name, ""))


def batch(processes: int = 1, **options: int) -> Check:
    return check_batch(planned(processes, **options).with_model("tiny"))


def memory(run: PlannedRun, free: int, *lengths: list[int]) -> Check:
    training = run.config.training.model_copy(update={"bf16": True, "gradient_checkpointing": False})
    run = replace(run, config=run.config.model_copy(update={"training": training}))
    return check_memory(run, SEVEN_B, PromptLengths([100, 1024], *lengths), free * 10**9, "on GPU 0")


def test_memory_is_estimated_for_the_micro_batch_that_is_computed() -> None:
    """A process's share of a step, if that is smaller than `per_device_train_batch_size`."""
    sizes = {"rollouts_per_step": 32, "num_generations": 8}
    large, share = (memory(planned(8, **sizes, per_device_train_batch_size=size), 100).finding for size in (64, 4))
    assert large == share


def prompts(context: int, *lengths: list[int], evaluation_tokens: int | None = None) -> Check:
    run = planned(max_prompt_length=50, max_tokens=30)
    config = run.config.model_copy(update={"evaluation": EvaluationConfig(max_tokens=evaluation_tokens)})
    return judge_prompts(replace(run, config=config), context, PromptLengths(*lengths))


NO_KERNELS = "CUDA error: no kernel image is available for execution on the device"
NO_TORCH = Finished(1, errors="Traceback ...\nModuleNotFoundError: No module named 'torch'")
IMPORT_ERROR = Finished(1, errors="noise\nImportError: libcudart.so.12: cannot open")
HAVE = {"verifiers": "0.1.6.post0", "torch": "2.8.0+cu128"}
MANY = [[], [1024] * 256]  # prompts of evaluations
HERE = Path("/home/me")
THREE = planned(3, engine="vllm")
MIB = 2**20
APART = probe({}, {}, apart=[[0, 1]])


@pytest.mark.parametrize(
    ("check", "pattern"),
    [
        # too old stops a run; newer than tested may not
        (python("3.11.7"), "ok *3.11.7"),
        (python("3.12.0rc1"), "ok "),
        (python("3.13.1"), "warning *is not a tested version*fix: use Python 3.11 or 3.12"),
        (python("3.10.4"), "failed *requires >=3.11*fix: "),
        # WSL 2 counts as Linux
        (machine.check_system("Linux", "6.8.0-45-generic", HERE), "ok *Linux"),
        (machine.check_system("Darwin", "23.5.0", HERE), "ok *macOS"),
        (machine.check_system("Linux", "5.15.153.1-microsoft-standard-WSL2", HERE), "ok *WSL 2"),
        (machine.check_system("Linux", "5.15.153.1-microsoft-standard-WSL2", Path("/mnt/c")), "warning *slow*fix: "),
        (machine.check_system("Linux", "4.4.0-19041-Microsoft", HERE), "warning *WSL 1*not support GPUs*--set-version"),
        # each range counts; packages of other extras and platforms only if they are installed
        (packages(HAVE), "ok *all 2 packages are within"),
        (packages(HAVE, "vllm"), "warning *not installed: vllm*./setup.sh --gpu"),
        (packages({**HAVE, "torch": "2.11.0", "vllm": "0.12", "winonly": "0"}),
         "warning *torch 2.11.0 (<2.10,>=2.8), vllm 0.12 (<0.11.1); fix: *pip install *?train?"),
        (packages({"torch": "2.8"}), "warning *not installed: verifiers"),
        # a broken driver stops a run with vLLM only: the embedded engine can use the CPU
        (driver(TWO_GPUS), "ok *1, NVIDIA A100-SXM4-80GB, 81920 MiB, 74211 MiB, 550.54.15"),
        (driver(CONSUMER), "ok *RTX 4090"),
        (driver(MIG), "warning *MIG is on*NCCL"),
        (driver("No such file", None), "ok *no NVIDIA"),
        (driver("No devices were found", 6), "ok *no NVIDIA"),
        (driver(BROKEN, 9), "failed *couldn't communicate with the NVIDIA driver*fix: reinstall"),
        (driver(BROKEN, 9, planned()), "warning *training would use the CPU*fix: reinstall"),
        (driver(MISMATCH, 18), "failed *Failed to initialize NVML: Driver/library"),
        (driver(LOST, 15), "failed *GPU is lost"),
        (driver("", 9), "failed *exit code 9"),
        # what torch sees, compared with what the driver sees
        (torch(probe({}, {})), "ok *works on 2 GPUs"),
        (torch(probe(), ""), "ok *on the CPU"),
        (torch(probe(cuda=None)), "warning *CPU build*--gpu"),
        (torch(probe(problem="driver too old")), "warning *too old*update"),
        (torch(probe({"problem": NO_KERNELS})), "failed *no kernel image*torch build"),
        (torch(probe({}, {"problem": "out of memory"})), "failed *GPU 1 does not work*CUDA_VISIBLE_DEVICES"),
        (torch(probe({"capability": [7, 5]})), "warning *no native bf16*bf16=False"),
        (torch(probe(), visible=""), "warning *CUDA_VISIBLE_DEVICES hides*unset"),
        (machine.check_peers(probe({})), "skipped *fewer than two"),
        (machine.check_peers(probe({}, {})), "ok *all 2"),
        (machine.check_peers(APART), "warning *0 and 1*NCCL_P2P_DISABLE=1"),
        (machine.check_peers(APART, p2p_disabled=True), "ok *NCCL_P2P_DISABLE=1 is set"),
        # a missing torch fails requested training only, a broken one always
        (no_torch(NO_TORCH, planned()), "failed *not installed*pip install *?train?"),
        (no_torch(NO_TORCH, NOT_REQUESTED), "warning *not installed*pip install *?train?"),
        (no_torch(Finished(-11), NOT_REQUESTED), "failed *SIGSEGV*reinstall"),
        # a GPU for each process, and one more for a server on this machine that does not run yet
        (count(planned(2), 2), "ok *2 GPUs for 2"),
        (count(planned(3), 2), "failed *3 processes, but torch sees 2 GPUs*--processes 2"),
        (count(planned(2, engine="vllm"), 2), "failed *one for vLLM*engine.kind=embedded"),
        (count(VLLM, 2), "ok *2 GPUs for 1"),
        (count(planned(2, engine="vllm", host="10.0.0.2"), 2), "ok *2 GPUs for 2"),
        (count(planned(), 0), "skipped *no GPU"),
        (machine.judge_import("vllm", Finished(0), "reinstall"), "ok "),
        (machine.judge_import("vllm", IMPORT_ERROR, "reinstall"),
         "failed *cannot be imported: ImportError: libcudart.so.12: cannot open; fix: reinstall"),
        # the batch must be divisible over all processes
        (batch(), "ok *128 rollouts per step: 16 prompts x 8, in 2 micro-batches on each of 1 process"),
        (batch(2), "ok *128 rollouts per step: 16 prompts x 8, in 1 micro-batch on each of 2 processes"),
        (batch(3), "failed *not divisible by 3 processes*training.rollouts_per_step=120 or 144"),
        (batch(4), "ok *128 rollouts per step: 16 prompts x 8, in 1 micro-batch on each of 4 processes"),
        (batch(2, per_device_train_batch_size=24),
         "failed *does not divide the 64 rollouts*training.per_device_train_batch_size=16 or 32"),
        (batch(num_generations=12), "failed *not divisible by num_generations=12*rollouts_per_step=192"),
        # a smaller micro-batch is the fix where it helps, because a step then stays the same
        (memory(THREE, 130), "ok *on GPU 0 (state 42 GB"),
        (memory(THREE, 100), "failed *about 104 GB*training.per_device_train_batch_size=4 (steps are unchanged)"),
        (memory(THREE, 112), "warning *about 104 GB*training.per_device_train_batch_size=4"),
        (memory(THREE, 30), "failed *about 104 GB*more --processes"),
        (memory(planned(), 80), "failed *engine's cache 30 GB*engine.kind=vllm"),
        (memory(planned(), 140, *MANY), "failed *engine's cache in evaluations 120 GB)*fix: use LoRA, a smaller model"),
        (memory(planned(), 208, *MANY), "failed *engine's cache in evaluations 120 GB)*engine.max_batch_size=256 "),
        # prompts against their limit, and with the completion against the model's context
        (prompts(128, [20], [50]), "ok *all 2 within 50 tokens; the longest has 50"),
        (prompts(128, [20, 51]), "failed *1 of 2 is longer*training.max_prompt_length=51"),
        (prompts(128, [20], [51]), "failed *1 of 2 is longer*training.max_prompt_length=51"),
        (prompts(70, [20, 50]), "failed *exceeds *context of 70*training.max_tokens=20"),
        (prompts(128, [20], [50], [10, 98]), "ok *has 50; 2 more in evaluations; the longest has 98"),
        (prompts(127, [20], [50], [10, 98]), "failed *98 tokens; with 30 new*evaluation.max_tokens=29,"),
        (prompts(128, [20], [50], [10, 98], evaluation_tokens=31), "failed *with 31 new*evaluation.max_tokens=30,"),
        (prompts(128, [20], [50], evaluation_tokens=79), "failed *50 tokens; *79 new*evaluation.max_tokens=78,"),
        (prompts(98, [20], [50], [10, 98], evaluation_tokens=5), "failed *98 tokens; *5 new ones*other tasks, or"),
        # each rollout in flight holds a connection
        (machine.check_open_files(0, (1024, 4096)), "ok *limit 1024"),
        (machine.check_open_files(1024, (1024, 1048576)), "failed *needs 1536*ulimit -n 65536"),
        (machine.check_open_files(1024, (1024, -1)), "failed *needs 1536*ulimit -n 65536"),
        (machine.check_open_files(1024, (1024, 4096)), "failed *needs 1536*ulimit -n 4096"),
        (machine.check_open_files(1024, (1024, 1024)), "failed *needs 1536*administrator"),
        (machine.check_open_files(1024, (-1, -1)), "ok *no limit"),
        # Docker's 64 MB are too few for several processes
        (machine.check_shared_memory(VLLM, 64 * MIB), "warning *67 MB*--shm-size"),
        (machine.check_shared_memory(planned(), 64 * MIB), "ok *67 MB"),
        (machine.check_shared_memory(VLLM, 8 * GIB), "ok *8.6 GB"),
        (machine.check_shared_memory(VLLM, None), "skipped *no /dev/shm"),
        (machine.check_ports(planned()), "skipped *a single process does not need a port"),
    ],
)  # fmt: skip
def test_findings_and_fixes(check: Check, pattern: str) -> None:
    is_like(check, pattern)


def test_a_failure_needs_a_fix_and_a_line_is_one_line() -> None:
    with pytest.raises(ValueError, match="no fix"):
        Check("failed", "broken")
    line = Check("failed", "one\ntwo", "do\tthat", name="ports").line()
    assert line == "failed   ports         one two; fix: do that"
    assert closing_line([Check("ok", ""), Check("warning", ""), Check("skipped", "")]) == ("1 ok, 1 warning, 0 failed")


def test_a_trainer_that_cannot_be_imported() -> None:
    """The missing package is named; only a run that was described needs it."""
    code = """
import sys
sys.modules["accelerate"] = None
from rg_env.jobs.doctor import PlannedRun, machine
for given in ({"model.name": "org/model"}, {}):
    print(machine.check_trainer(PlannedRun.of_options(given)).line())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    failed, warning = done.stdout.splitlines()
    assert failed.startswith("failed ")
    assert fnmatchcase(warning, "warning *requires accelerate, which is not installed; fix: *")


def test_models_that_cannot_be_trained(tmp_path: Path) -> None:
    """The problem is found without loading the weights."""
    folder = shutil.copytree(POLICY_DIR, tmp_path / "model")

    def is_refused(words: str, fix: str = "copy or download") -> None:
        is_like(check_model(str(folder))[0], f"failed *{words}*fix: *{fix}")

    good, model = check_model(str(folder))
    is_like(good, "ok *0.89 M parameters")
    assert model
    assert model.shape.parameters == 885_888  # tied ones once
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 8}))
    is_refused("model.layers.4.", "the config.json that belongs to its weights")
    (folder / "config.json").write_text(json.dumps(config))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    is_refused("cannot be read")
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    is_refused("cannot be read")
    weights.unlink()
    is_refused("does not contain model.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    is_refused("lacks part-1.safetensors")
    (folder / "chat_template.jinja").unlink()
    is_refused("no chat template", "instruction-tuned")
    is_like(check_model(str(tmp_path))[0], "failed *is not a model folder*pass a folder")


def test_weights_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted download does not count."""
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
        ({"model.name": "Qwen/Qwen2.5-1.5B-Instruct"}, 15.8, ["qwen2.5-1.5b_offload_16gb"]),
        ({"model.name": "Qwen/Qwen2.5-1.5B-Instruct", "lora.r": 64}, 15.8, ["qwen2.5-1.5b_16gb"]),
        ({"model.name": "Qwen/Qwen2.5-7B-Instruct"}, 25.2, ["qwen2.5-7b_24gb"]),
        # another model
        ({"model.name": "Qwen/Qwen2.5-7B-Instruct", "lora.r": 16}, 15.8, ["qwen2.5-3b", "qwen2.5-3b_16gb"]),
        ({"model.name": "Qwen/Qwen2.5-7B-Instruct"}, 11.9, []),
    ],
)
def test_a_preset_for_small_gpus_is_recommended(given: dict[str, Any], gigabytes: float, presets: list[str]) -> None:
    """The one of the same model and method, if there is one for the memory."""
    folder = Path(__file__).parents[2] / "configs" / "models"
    found = preset_for(PlannedRun.of_options(given).config, int(gigabytes * 1e9), folder)
    assert [file.stem for file in found] == presets


def test_tokens_that_engines_must_hold() -> None:
    """The embedded engine caches evaluations too; a server must accept the longest prompt of them."""
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


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Starts a server on a free port that answers as vLLM does; `world`: whether it takes weights."""
    with contextlib.ExitStack() as stack:

        def start(owner: str = "vllm", *, world: bool = True) -> int:
            model = {"id": "served", "owned_by": owner, "max_model_len": 512}
            answers: dict[str, Any] = {
                "/health": {},
                "/v1/models": {"data": [model]},
                "/version": {"version": "0.32.0"},
            }
            answers |= {"/get_world_size": {"world_size": 2}} if world else {}
            routes = [Route(path, partial(answer, values)) for path, values in answers.items()]
            return stack.enter_context(LoopbackServer(routes)).port

        async def answer(values: Any, _: Any) -> JSONResponse:
            return JSONResponse(values)

        yield start


def test_what_listens_at_the_servers_port(serve: Callable[..., int]) -> None:
    """Nothing, the right server, another model, too short a context, another kind of server."""

    def check(port: int, model: str = "served", tokens: int = 512) -> Check:
        return machine.check_server(planned(engine="vllm", port=port), model, tokens)

    good = serve()
    is_like(check(good), "ok *serves 'served', 512 tokens, 2 workers")
    is_like(check(good, model="mine"), "failed *serves 'served', not 'mine'*rg-env vllm mine")
    is_like(check(good, tokens=600), "failed *accepts 512 tokens*--max-model-len 600")
    is_like(check(serve(owner="rg-env")), "failed *is not a vLLM server*another engine.port")
    is_like(check(serve(world=False)), "failed *does not accept weights*another engine.port")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        is_like(machine.check_ports(planned(2), port), f"warning *{port}: something else is listening*any free port")
    is_like(machine.check_ports(planned(2), port), f"ok *{port} free")
    is_like(check(port), f"warning *nothing is listening*rg-env vllm served --host 127.0.0.1 --port {port}")
    away = planned(engine="vllm", host="nowhere.invalid")
    is_like(machine.check_server(away, "served", 1), "warning *nothing is listening*check engine.host")
    assert machine.check_server(planned(), None, 1).status == "skipped"


def test_room_for_checkpoints(tmp_path: Path) -> None:
    """One must fit; all should."""
    free = shutil.disk_usage(tmp_path).free
    run = planned(output_dir=str(tmp_path / "run"))  # 200 steps, a checkpoint every 100
    is_like(machine.check_output(run, 1000), "ok *for 2 checkpoints of 0 MB")
    is_like(machine.check_output(run, free * 2 // 3), "warning *not enough for*save_total_limit")
    is_like(machine.check_output(run, 2 * free), "failed *not enough for*another output folder")
    (tmp_path / "file").touch()
    is_like(machine.check_output(planned(output_dir=str(tmp_path)), 1), "failed *not empty*another output folder")


def test_wandb_is_needed_only_if_it_is_reported_to(tmp_path: Path, environ: Callable[..., None]) -> None:
    """The key comes from the environment or the netrc file, which is never quoted, even if it is damaged."""
    environ(WANDB_API_KEY=None, WANDB_MODE=None, NETRC=str(tmp_path / "netrc"), HOME=str(tmp_path))
    config = planned().config
    logging = config.logging.model_copy(update={"report_to": ["tensorboard", "wandb"]})
    reported = PlannedRun(config.model_copy(update={"logging": logging}))
    is_like(machine.check_wandb(planned()), "ok *no login")
    is_like(machine.check_wandb(reported), "failed *no login*wandb login")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user passwerd s3cr3t-of-mine\n")
    assert "s3cr3t" not in machine.check_wandb(reported).line()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password s3cr3t-of-mine\n")
    is_like(machine.check_wandb(reported), "ok *login found")
    (tmp_path / "netrc").unlink()
    environ(WANDB_MODE="offline")
    is_like(machine.check_wandb(reported), "ok *offline")
