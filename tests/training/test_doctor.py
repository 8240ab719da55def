"""`rg-env doctor`: each finding from fabricated inputs, and the command on this machine."""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from packaging.requirements import Requirement

from rg_env.cli import run as run_cli
from rg_env.commands import run_command
from rg_env.errors import InputError
from rg_env.training.doctor import (
    Check,
    RunPlan,
    accounts,
    check_trainer,
    closing_line,
    diagnose,
    gpus,
    machine,
    versions,
)
from rg_env.training.doctor.aside import Outcome, run_aside, run_python
from rg_env.training.doctor.batches import check_batch, judge_prompts, resolved
from rg_env.training.doctor.model import Model, check_memory, check_model, checkpoint_count, chosen_name, stored_weights
from rg_env.training.memory import ModelShape
from rg_env.training.policy import DEFAULT_GPU_MODEL
from rg_env.training.tiny import POLICY_DIR

VLLM = RunPlan(engine="vllm")
GIB = 2**30

# What nvidia-smi prints for the fields that the doctor asks for, without header and units.
TWO_GPUS = (
    "0, NVIDIA A100-SXM4-80GB, 81920, 3, 550.54.15, Disabled\n"
    "1, NVIDIA A100-SXM4-80GB, 81920, 74211, 550.54.15, Disabled\n"
)
CONSUMER = "0, NVIDIA GeForce RTX 4090, 24564, 412, 560.35.03, [N/A]\n"
MIG = "0, NVIDIA H100 80GB HBM3, 81559, [Insufficient Permissions], 535.161.08, Enabled\n"
BROKEN = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n\n"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.127\n"


def smi(output: str, code: int | None = 0) -> gpus.Smi:
    return gpus.parse_smi(Outcome(code, output))


def probe(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What `torch_probe` prints on a machine with `devices`."""
    whole = {"index": 0, "name": "GPU", "capability": [8, 0], "free": 80 * GIB, "total": 80 * GIB, "problem": ""}
    found = [{**whole, "index": index, **device} for index, device in enumerate(devices)]
    architectures = ["sm_75", "sm_80", "sm_86", "sm_90", "compute_90"] if devices else []
    basics = {"version": "2.8.0", "cuda": "12.8", "mps": False, "problem": "", "architectures": architectures}
    return {**basics, "devices": found, "apart": [], **changes}


def is_like(check: Check, status: str, words: str, fix: str = "") -> None:
    assert check.status == status, check.line()
    assert words in check.finding
    assert fix in check.fix


def test_a_failure_needs_a_fix_and_a_line_is_one_line() -> None:
    """Whatever an error's text holds."""
    with pytest.raises(ValueError, match="no fix"):
        Check("x", "failed", "broken")
    line = Check("ports", "failed", "one\ntwo", "do\tthat").line()
    assert line == "failed   ports         one two; fix: do that"
    assert closing_line([Check("a", "ok", ""), Check("b", "warning", ""), Check("c", "skipped", "")]) == (
        "1 ok, 1 warning, 0 failed"
    )


@pytest.mark.parametrize(
    ("version", "status"), [("3.11.7", "ok"), ("3.12.0rc1", "ok"), ("3.13.1", "warning"), ("3.10.4", "failed")]
)
def test_python_versions(version: str, status: str) -> None:
    """Too old stops a run; newer than tested may not."""
    check = versions.check_python(version, ">=3.11", ["3.11", "3.12"])
    assert check.status == status
    assert bool(check.fix) == (status != "ok")


def test_package_versions() -> None:
    """Ranges add up over extras; other extras and platforms count where they are installed only."""
    requirements = [
        Requirement(text)
        for text in (
            "verifiers>=0.1.2",
            "verifiers==0.1.6.post0; extra == 'train'",
            "torch<2.10,>=2.8; extra == 'train'",
            "vllm<0.11.1; extra == 'vllm'",
            "winonly>=1; sys_platform == 'nowhere' and extra == 'train'",
        )
    ]
    there = {"verifiers": "0.1.6.post0", "torch": "2.8.0+cu128"}
    is_like(versions.check_packages(requirements, ["train"], there.get), "ok", "all 2")
    is_like(
        versions.check_packages(requirements, ["train", "vllm"], there.get), "warning", "installed: vllm", "uv sync"
    )
    there |= {"torch": "2.11.0", "vllm": "0.12", "winonly": "0"}
    check = versions.check_packages(requirements, ["train"], there.get)
    is_like(check, "warning", "torch 2.11.0 (<2.10,>=2.8), vllm 0.12 (<0.11.1)", "rg-env[train]")
    assert "winonly" not in check.finding
    is_like(versions.check_packages(requirements, ["train"], {"torch": "2.8"}.get), "warning", "installed: verifiers")


def test_what_nvidia_smi_says() -> None:
    """Several GPUs, unknown values, MIG."""
    first, second = smi(TWO_GPUS).gpus
    assert (first.name, first.total, first.used) == ("NVIDIA A100-SXM4-80GB", 81920 * 2**20, 3 * 2**20)
    is_like(gpus.check_driver(smi(TWO_GPUS), "vllm"), "ok", "78 GB in use); driver 550.54.15")
    assert second.index == 1
    is_like(gpus.check_driver(smi(CONSUMER), "embedded"), "ok", "RTX 4090")
    is_like(gpus.check_driver(smi(MIG), "embedded"), "warning", "MIG is on", "NCCL")
    assert smi(MIG).gpus[0].used is None


@pytest.mark.parametrize(
    "outcome", [Outcome(None, errors="No such file or directory"), Outcome(6, "No devices were found")]
)
def test_no_gpu_is_fine(outcome: Outcome) -> None:
    """Neither the program nor a device."""
    is_like(gpus.check_driver(gpus.parse_smi(outcome), "embedded"), "ok", "none seen")


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome(9, BROKEN), "couldn't communicate with the NVIDIA driver"),
        (Outcome(18, MISMATCH), "Failed to initialize NVML: Driver/library"),
        (Outcome(15, TWO_GPUS[:57] + "Unable to determine the device handle for GPU1: GPU is lost.\n"), "GPU is lost"),
        (Outcome(9), "exit code 9"),
        (Outcome(None, errors="no answer within 10 s", late=True), "no answer within 10 s"),
    ],
)
def test_a_broken_driver_stops_what_needs_it(outcome: Outcome, words: str) -> None:
    """And is told where a CPU would do."""
    broken = gpus.parse_smi(outcome)
    is_like(gpus.check_driver(broken, "vllm"), "failed", words, "driver")
    is_like(gpus.check_driver(broken, "embedded"), "warning", "CPU", "driver")


@pytest.mark.parametrize(
    ("architectures", "capability", "runs"),
    [
        (["sm_80"], (8, 0), True),
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_80"], (9, 0), False),
        (["compute_80"], (9, 0), True),
        (["sm_90a"], (9, 0), True),
        (["sm_100a"], (10, 3), False),
        (["sm_90", "sm_120"], (12, 0), True),
        (["gfx90a"], (9, 0), False),
        ([], (8, 0), False),
    ],
)
def test_kernels(architectures: list[str], capability: tuple[int, int], runs: bool) -> None:
    """Machine code runs within its major version, code for the driver's compiler on all later ones."""
    assert gpus.has_kernels(architectures, capability) is runs


def test_what_torch_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what the driver sees."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    none, two, plan = smi("", None), smi(TWO_GPUS), RunPlan()
    is_like(gpus.check_torch(probe({}, {}), "", two, plan), "ok", "computes on 2 GPUs")
    is_like(gpus.check_torch(probe(), "", none, plan), "ok", "on the CPU")
    is_like(gpus.check_torch(probe(cuda=None), "", two, plan), "warning", "build for CPUs", "--gpu")
    is_like(gpus.check_torch(probe(problem="driver too old"), "", two, plan), "warning", "too old", "update")
    is_like(gpus.check_torch(probe({"capability": [7, 0]}), "", two, plan), "failed", "no kernels for GPU 0", "build")
    is_like(gpus.check_torch(probe({"capability": [7, 5]}), "", two, plan), "warning", "no bf16", "fp16")
    is_like(gpus.check_torch(probe({}, {"problem": "busy"}), "", two, plan), "failed", "GPU 1 does not", "CUDA_VISIBLE")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    is_like(gpus.check_torch(probe(), "", two, plan), "warning", "hides", "unset")


def test_torch_that_does_not_work() -> None:
    """Missing is a failure only where training was asked for; broken always is."""
    found, reason = gpus.read_probe(Outcome(1, errors="Traceback\nModuleNotFoundError: No module named 'torch'\n"))
    assert found is None
    is_like(gpus.check_torch(None, reason, smi(""), RunPlan(asked=True)), "failed", "not installed", "rg-env[train]")
    is_like(gpus.check_torch(None, reason, smi(""), RunPlan(asked=False)), "warning", "not installed", "rg-env[train]")
    _, reason = gpus.read_probe(Outcome(-11))
    is_like(gpus.check_torch(None, reason, smi(""), RunPlan(asked=False)), "failed", "SIGSEGV", "reinstall")
    assert check_trainer(RunPlan(), torch_works=False).status == "skipped"


def test_a_trainer_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names the package that is missing."""
    monkeypatch.delitem(sys.modules, "rg_env.training.trainer", raising=False)
    monkeypatch.setitem(sys.modules, "rg_env.training.rollouts", None)
    assert check_trainer(RunPlan(), torch_works=True).status == "failed"
    is_like(check_trainer(RunPlan(asked=False), torch_works=True), "warning", "needs rg_env.training.rollouts")


def test_how_many_gpus() -> None:
    """One a process, and one more for a server on this machine that does not run yet."""
    two = smi(TWO_GPUS)

    def count(plan: RunPlan, seen: int, server_runs: bool = False) -> Check:
        return gpus.check_count(probe(*[{}] * seen), two, plan, server_runs=server_runs)

    is_like(count(RunPlan(processes=2), 2), "ok", "2 for 2")
    is_like(count(RunPlan(processes=3), 2), "failed", "3 processes and 2 GPUs", "--processes 2")
    is_like(count(RunPlan(engine="vllm", processes=2), 2), "failed", "one for vf-vllm", "--engine embedded")
    is_like(count(RunPlan(engine="vllm", processes=1), 2), "ok", "2 for 1")
    is_like(count(RunPlan(engine="vllm", processes=2, vllm_host="10.0.0.2"), 2), "ok", "2 for 2")
    is_like(count(RunPlan(), 0), "skipped", "no GPU")


def test_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it NCCL can hang, unless told."""
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    is_like(gpus.check_peers(probe({}), RunPlan()), "skipped", "fewer than two")
    is_like(gpus.check_peers(probe({}, {}), RunPlan()), "ok", "all 2")
    apart = probe({}, {}, apart=[[0, 1]])
    is_like(gpus.check_peers(apart, RunPlan()), "warning", "0 and 1", "NCCL_P2P_DISABLE=1")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    is_like(gpus.check_peers(apart, RunPlan()), "ok", "NCCL_P2P_DISABLE=1 is set")


def test_imports_are_judged_by_their_last_line() -> None:
    """In a process of its own, real here."""
    is_like(gpus.judge_import("vllm", Outcome(0), "0.11.0"), "ok", "0.11.0")
    outcome = run_python(30, "-c", "import sys; print('noise'); raise ImportError('libcudart.so.12: cannot open')")
    check = gpus.judge_import("flash-attn", outcome, "2.8.3")
    is_like(check, "failed", "2.8.3 cannot be imported: ImportError: libcudart.so.12: cannot open", "uninstall")


def test_what_hangs_is_killed() -> None:
    """With what it started, at the deadline."""
    start = time.monotonic()
    outcome = run_aside(["sh", "-c", "sleep 60 & wait"], 0.3)
    assert outcome.late
    assert outcome.reason == "no answer within 0.3 s"
    assert time.monotonic() - start < 10
    assert run_aside(["/nowhere/at/all"], 1).code is None


class _Server(BaseHTTPRequestHandler):
    """Answers `/health`, `/v1/models` and `/get_world_size` as a vf-vllm does."""

    owner, world = "vllm", True

    def do_GET(self) -> None:
        entry = {"id": "served", "owned_by": self.owner, "max_model_len": 512}
        answers = {"/health": {}, "/v1/models": {"data": [entry]}}
        if self.world:
            answers["/get_world_size"] = {"world_size": 2}
        self.send_response(200 if self.path in answers else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(self.path)).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Starts a server of a kind on a free port."""
    servers = []

    def start(**attributes: Any) -> int:
        server = HTTPServer(("127.0.0.1", 0), type("Handler", (_Server,), attributes))
        servers.append(server)
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return server.server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_who_answers_at_the_servers_port(serve: Callable[..., int]) -> None:
    """Nobody, the right server, another model, too short a context, another kind of server."""

    def look(port: int, model: str = "served", tokens: int = 512) -> Check:
        return machine.check_server(RunPlan(engine="vllm", vllm_port=port), model, tokens)[0]

    good = serve()
    is_like(look(good), "ok", "serves 'served', 512 tokens, 2 workers")
    is_like(look(good, model="mine"), "failed", "serves 'served', not 'mine'", "vf-vllm --model mine")
    is_like(look(good, tokens=600), "failed", "takes 512 tokens", "--max-model-len 600")
    is_like(look(serve(owner="rg-env")), "failed", "no vLLM server", "another --vllm-port")
    is_like(look(serve(world=False)), "failed", "takes no weights", "another --vllm-port")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    is_like(look(port), "warning", "nothing listens", f"vf-vllm --model served --host 127.0.0.1 --port {port}")
    away = RunPlan(engine="vllm", vllm_host="nowhere.invalid")
    is_like(machine.check_server(away, "served", 1)[0], "warning", "nothing listens", "check --vllm-host")
    assert machine.check_server(RunPlan(), None, 1)[0].status == "skipped"


def test_ports_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever listens there now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(machine, "LAUNCH_PORT", port)
        is_like(machine.check_ports(RunPlan(processes=2)), "failed", f"{port}: something else listens", "end what")
    is_like(machine.check_ports(RunPlan(processes=2)), "ok", f"{port} free")
    assert machine.check_ports(RunPlan()).status == "skipped"


def test_open_files() -> None:
    """Each rollout in flight holds a connection."""
    is_like(machine.check_open_files(1024, 4096, 0), "ok", "limit 1024")
    is_like(machine.check_open_files(1024, 1048576, 1024), "failed", "needs 1536", "ulimit -n 65536")
    is_like(machine.check_open_files(1024, 4096, 1024), "failed", "needs 1536", "ulimit -n 4096")
    is_like(machine.check_open_files(1024, 1024, 1024), "failed", "needs 1536", "administrator")
    is_like(machine.check_open_files(-1, -1, 1024), "ok", "no limit")


def test_shared_memory() -> None:
    """Docker's 64 MB are too few for several processes."""
    is_like(machine.check_shared_memory(64 * 2**20, VLLM), "warning", "67 MB", "--shm-size")
    is_like(machine.check_shared_memory(64 * 2**20, RunPlan()), "ok", "67 MB")
    is_like(machine.check_shared_memory(8 * GIB, VLLM), "ok", "8.6 GB")
    is_like(machine.check_shared_memory(None, VLLM), "skipped", "no /dev/shm")


def test_room_for_checkpoints(tmp_path: Path) -> None:
    """One must fit; all should."""
    free = shutil.disk_usage(tmp_path).free
    plan = RunPlan(output_dir=str(tmp_path / "run"))
    is_like(machine.check_output(plan, 1000, 3), "ok", "3 checkpoints")
    is_like(machine.check_output(plan, free // 2, 3), "warning", "not all fit", "save_total_limit")
    is_like(machine.check_output(plan, 2 * free, 1), "failed", "will not fit", "--output-dir")
    (tmp_path / "file").touch()
    is_like(
        machine.check_output(RunPlan(output_dir=str(tmp_path)), 1, 1), "failed", "not empty", "another --output-dir"
    )
    assert checkpoint_count({"max_steps": 250, "save_steps": 100, "save_strategy": "steps"}) == 3
    assert checkpoint_count({"max_steps": 250, "save_steps": 100, "save_strategy": "no"}) == 1


@pytest.fixture
def no_logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.usefixtures("no_logins")
def test_wandb_is_needed_where_it_is_reported_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a key in the environment or in netrc's file, which is never quoted, damaged as it may be."""
    is_like(accounts.check_wandb({"report_to": "none"}), "ok", "no login")
    for wanted in ("wandb", ["tensorboard", "wandb"]):
        is_like(accounts.check_wandb({"report_to": wanted}), "failed", "no login", "wandb login")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user passwerd s3cr3t-of-mine\n")
    assert "s3cr3t" not in accounts.check_wandb({"report_to": "wandb"}).line()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password s3cr3t-of-mine\n")
    is_like(accounts.check_wandb({"report_to": "wandb"}), "ok", "a login is there")
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    is_like(accounts.check_wandb({"report_to": "wandb"}), "ok", "offline")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny policy, to be damaged."""
    return shutil.copytree(POLICY_DIR, tmp_path / "model")


def test_models_that_cannot_be_trained(folder: Path) -> None:
    """What is wrong with a folder is told without loading it."""
    good, model = check_model(str(folder))
    is_like(good, "ok", "0.89 M parameters")
    assert model
    assert model.shape.layers == 4
    assert model.shape.parameters == 885_888  # tied ones once
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 8}))
    is_like(check_model(str(folder))[0], "failed", "1.67 M parameters by its config.json, and its files hold 0.89 M")
    (folder / "config.json").write_text(json.dumps(config))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    is_like(check_model(str(folder))[0], "failed", "cannot be read", "copy or download")
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    is_like(check_model(str(folder))[0], "failed", "Git LFS pointer", "copy or download")
    weights.unlink()
    is_like(check_model(str(folder))[0], "failed", "has no weights", "copy or download")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    with pytest.raises(InputError, match=r"lacks part-1\.safetensors"):
        stored_weights(str(folder))
    (folder / "chat_template.jinja").unlink()
    is_like(check_model(str(folder))[0], "failed", "no chat template", "instruction-tuned")
    is_like(check_model(str(folder.parent))[0], "failed", "holds no model", "check --model")


def test_weights_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are found; a download that was broken off counts as none."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert stored_weights("someone/model") == []
    snapshot = tmp_path / "models--someone--model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (refs := tmp_path / "models--someone--model" / "refs").mkdir()
    (refs / "main").write_text("abc")
    (snapshot / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    )
    (snapshot / "1.safetensors").touch()
    assert stored_weights("someone/model") == []
    (snapshot / "2.safetensors").touch()
    assert stored_weights("someone/model") == [snapshot / "1.safetensors", snapshot / "2.safetensors"]


def test_which_model() -> None:
    """The machine's default only where none was named."""
    assert [chosen_name(RunPlan(), cuda=cuda) for cuda in (False, True)] == ["tiny", DEFAULT_GPU_MODEL]
    assert chosen_name(RunPlan(model=""), cuda=True) == ""


def test_the_machines_default_model_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run takes the tiny policy then; one that was asked for has to be there."""
    monkeypatch.setattr("rg_env.training.doctor.model.DEFAULT_GPU_MODEL", str(tmp_path / "nowhere"))
    monkeypatch.setattr("rg_env.training.policy._hub_answers", lambda: False)
    monkeypatch.setattr(gpus, "ask_torch", lambda: (probe({}), ""))
    models = [check for check in diagnose(RunPlan(num_train_examples=8, num_eval_examples=2)) if check.name == "model"]
    is_like(models[0], "warning", "the tiny policy takes its place", "check --model")
    is_like(models[1], "ok", "tiny")


def test_memory_that_does_not_suffice() -> None:
    """The fix keeps the rollouts a step where a smaller micro-batch would do."""
    seven = Model("7B", False, None, ModelShape(7_615_616_512, 28, 3584, 152_064, 512), 32_768)
    settings = resolved(RunPlan(), is_tiny=False) | {"bf16": True, "gradient_checkpointing": False}

    def look(plan: RunPlan, room: int | None) -> Check:
        return check_memory(plan, settings, seven, [100, 1024], room, "on GPU 0")

    three = RunPlan(engine="vllm", processes=3)
    is_like(look(three, 130 * 10**9), "ok", "on GPU 0 (state 42 GB")
    fix = "--per-device-batch-size 4 --accumulation 32 (the same rollouts a step)"
    is_like(look(three, 100 * 10**9), "failed", "about 104 GB", fix)
    is_like(look(three, 112 * 10**9), "warning", "about 104 GB", fix)
    is_like(look(three, 30 * 10**9), "failed", "about 104 GB", "more --processes")
    is_like(look(RunPlan(), 80 * 10**9), "failed", "engine's cache 30 GB", "--engine vllm")
    is_like(look(RunPlan(), None), "skipped", "not known")


def test_batches() -> None:
    """As `GRPOConfig` sees them, over all processes."""

    def look(processes: int = 1, **settings: int) -> Check:
        plan = RunPlan(processes=processes, settings=settings)
        return check_batch(plan, resolved(plan, is_tiny=True))

    is_like(look(), "ok", "128 rollouts a step: 16 prompts x 8")
    is_like(look(processes=3, num_generations=12), "ok", "384 rollouts a step: 32 prompts x 12")
    is_like(look(num_generations=12), "failed", "num_generations=12 does not divide", "nearest per_device_train_batch")
    is_like(look(num_generations=1), "failed", "at least 2", "groups of at least 2")
    is_like(look(generation_batch_size=100), "failed", "no multiple", "divide each other")


def test_prompts() -> None:
    """Against the limit, and with the completion against the model's context."""
    settings = {"max_prompt_length": 50, "max_seq_len": 80, "max_tokens": 30}
    is_like(judge_prompts(settings, 128, [20, 50]), "ok", "all 2 within 50 tokens, the longest has 50")
    is_like(judge_prompts(settings, 128, [20, 51]), "failed", "1 of 2 are longer", "--max-prompt-length 51")
    is_like(judge_prompts(settings, 70, [20, 50]), "failed", "more than the 70", "--max-tokens 20")


def test_the_context_follows_the_lengths_that_are_given() -> None:
    """A run whose prompts may be longer needs room for them."""
    plan = RunPlan(settings={"max_prompt_length": 300, "learning_rate": None})
    assert resolved(plan, is_tiny=True)["max_seq_len"] == 390
    assert resolved(plan, is_tiny=True)["learning_rate"] == 1e-4


@pytest.fixture(scope="session")
def torch_here() -> tuple[dict[str, Any] | None, str]:
    """What torch sees on this machine: asked once, for it takes seconds."""
    return gpus.ask_torch()


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process, in an empty folder; gives exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            run_command(lambda: run_cli(["doctor", *arguments]))
        return int(caught.value.code or 0), *capsys.readouterr()

    return call


def test_this_machine_can_train_the_tiny_policy(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written, and no part of a token is shown."""
    token = "hf_QxZjKvWqYpLmNbTr"
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("WANDB_API_KEY", token[::-1])
    code, text, errors = run("--model", "tiny")
    assert code == 0, text
    *lines, closing = text.splitlines()
    assert closing.endswith(" 0 failed")
    assert {line.split()[0] for line in lines} <= {"ok", "warning", "skipped"}
    assert any("a token is there" in line for line in lines)
    assert any("within 160 tokens" in line for line in lines)
    for secret in (token, token[::-1]):
        assert not any(secret[at : at + 6] in text + errors for at in range(len(secret) - 5))
    assert list(tmp_path.iterdir()) == []


def test_what_would_stop_the_run_ends_with_the_fix(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, torch_here: Any
) -> None:
    """All of it at once, not the first alone; exit code 1."""
    monkeypatch.setattr(gpus, "ask_torch", lambda: torch_here)
    code, text, _ = run("--model", "tiny", "--num-generations", "7", "--max-prompt-length", "20")
    assert code == 1
    failed = {line.split()[1]: line for line in text.splitlines() if line.startswith("failed ")}
    assert set(failed) == {"batch", "prompts"}
    assert "fix: take the nearest per_device_train_batch_size: 63, 70; or num_generations: " in failed["batch"]
    assert "fix: --max-prompt-length " in failed["prompts"]
    assert text.splitlines()[-1].endswith(", 2 failed")


def test_records(run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, torch_here: Any) -> None:
    """`--json`, also of a model that is not there."""
    monkeypatch.setattr(gpus, "ask_torch", lambda: torch_here)
    code, text, _ = run("--json", "--model", os.devnull)
    assert code == 1
    records = {record["name"]: record for record in json.loads(text)}
    assert records["model"]["status"] == "failed"
    assert records["model"]["fix"].startswith("check --model")
    assert records["memory"] == {
        "name": "memory",
        "status": "skipped",
        "finding": "there is no model to measure with",
        "fix": "",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "leg_countin"], "unknown task 'leg_countin': did you mean 'leg_counting'"),
        (["--vllm-port", "70000"], "port 70000 does not exist"),
        (["--processes", "0"], "not at least 1"),
        (["--engine", "trl"], "invalid choice"),
    ],
)
def test_bad_input_is_no_finding(run: Callable[..., tuple[int, str, str]], arguments: list[str], words: str) -> None:
    """Exit code 2, as everywhere."""
    code, text, errors = run(*arguments)
    assert code == 2
    assert words in errors
    assert text == ""
