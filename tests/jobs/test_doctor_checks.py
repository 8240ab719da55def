"""The doctor's checks of software, GPUs, models, batches, prompts and this machine, on fabricated findings."""

import json
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from packaging.requirements import Requirement

from rg_env.core.processes import Finished, run_python
from rg_env.jobs.doctor import Check, PlannedRun, closing_line, machine, software
from rg_env.jobs.doctor.checks import Status
from rg_env.jobs.doctor.model import (
    Model,
    PromptLengths,
    cached_tokens,
    check_batch,
    check_memory,
    check_model,
    is_cached,
    judge_prompts,
    needed_tokens,
)
from rg_env.tiny import POLICY_DIR
from rg_env.training.config.schema import EvaluationConfig
from rg_env.training.reporting.memory import ModelShape

GIB = 2**30
# What nvidia-smi prints for the fields that the doctor queries.
TWO_GPUS = (
    "0, NVIDIA A100-SXM4-80GB, 81920 MiB, 3 MiB, 550.54.15, Disabled\n"
    "1, NVIDIA A100-SXM4-80GB, 81920 MiB, 74211 MiB, 550.54.15, Disabled\n"
)
CONSUMER = "0, NVIDIA GeForce RTX 4090, 24564 MiB, 412 MiB, 560.35.03, [N/A]\n"
MIG = "0, NVIDIA H100 80GB HBM3, 81559 MiB, [Insufficient Permissions], 535.161.08, Enabled\n"
BROKEN = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest ...\n\n"
)
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


def smi(output: str, code: int | None = 0) -> software.Smi:
    return software.parse_smi(Finished(code, output))


def probe(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What `torch_probe` prints on a machine with `devices`."""
    whole = {"capability": [8, 0], "free": 80 * GIB, "problem": ""}
    all_devices = [{"index": index, **whole, **device} for index, device in enumerate(devices)]
    basics = {"version": "2.8.0", "cuda": "12.8", "mps": False, "problem": ""}
    return {**basics, "devices": all_devices, "apart": [], **changes}


def is_like(check: Check, status: Status, words: str, fix: str = "") -> None:
    assert check.status == status, check.line()
    assert words in check.finding
    assert fix in check.fix


def test_a_failure_needs_a_fix_and_a_line_is_one_line() -> None:
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
def test_python_versions(version: str, status: Status) -> None:
    """Too old stops a run; newer than tested may not."""
    check = software.check_python(version, ">=3.11", ["3.11", "3.12"])
    assert check.status == status
    assert bool(check.fix) == (status != "ok")


def test_package_versions() -> None:
    """Each range counts; packages of other extras and platforms count only if installed."""
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

    def check(installed: dict[str, str], *extras: str) -> Check:
        return software.check_packages(requirements, ["train", *extras], installed.get)

    there = {"verifiers": "0.1.6.post0", "torch": "2.8.0+cu128"}
    is_like(check(there), "ok", "all 2")
    is_like(check(there, "vllm"), "warning", "installed: vllm", "uv sync")
    outside = check({**there, "torch": "2.11.0", "vllm": "0.12", "winonly": "0"})
    is_like(outside, "warning", "torch 2.11.0 (<2.10,>=2.8), vllm 0.12 (<0.11.1)", "rg-env[train] @ git+")
    assert "winonly" not in outside.finding
    is_like(check({"torch": "2.8"}), "warning", "installed: verifiers")


@pytest.mark.parametrize(
    ("finished", "run", "status", "words", "fix"),
    [
        (Finished(0, TWO_GPUS), VLLM, "ok", "1, NVIDIA A100-SXM4-80GB, 81920 MiB, 74211 MiB, 550.54.15", ""),
        (Finished(0, CONSUMER), planned(), "ok", "RTX 4090", ""),
        (Finished(0, MIG), planned(), "warning", "MIG is on", "NCCL"),
        (Finished(None, errors="No such file"), VLLM, "ok", "none seen", ""),
        (Finished(6, "No devices were found"), VLLM, "ok", "none seen", ""),
        (Finished(9, BROKEN), VLLM, "failed", "couldn't communicate with the NVIDIA driver", "driver"),
        (Finished(9, BROKEN), planned(), "warning", "training would use the CPU", "driver"),
        (Finished(18, MISMATCH), VLLM, "failed", "Failed to initialize NVML: Driver/library", "driver"),
        (Finished(15, LOST), VLLM, "failed", "GPU is lost", "driver"),
        (Finished(9), VLLM, "failed", "exit code 9", "driver"),
        (Finished(None, errors="no answer within 10 s", timed_out=True), VLLM, "failed", "no answer", "driver"),
    ],
)
def test_gpus_that_nvidia_smi_reports(
    finished: Finished, run: PlannedRun, status: Status, words: str, fix: str
) -> None:
    """A broken driver stops a run with vLLM only: the embedded engine can use the CPU."""
    is_like(software.check_driver(software.parse_smi(finished), run), status, words, fix)


NO_KERNELS = "CUDA error: no kernel image is available for execution on the device"


@pytest.mark.parametrize(
    ("found", "driver", "hidden", "status", "words", "fix"),
    [
        (probe({}, {}), TWO_GPUS, False, "ok", "computes on 2 GPUs", ""),
        (probe(), "", False, "ok", "on the CPU", ""),
        (probe(cuda=None), TWO_GPUS, False, "warning", "build for CPUs", "--gpu"),
        (probe(problem="driver too old"), TWO_GPUS, False, "warning", "too old", "update"),
        (probe({"problem": NO_KERNELS}), TWO_GPUS, False, "failed", "no kernel image", "torch build"),
        (probe({}, {"problem": "out of memory"}), TWO_GPUS, False, "failed", "GPU 1 does not compute", "CUDA_VISIBLE"),
        (probe({"capability": [7, 5]}), TWO_GPUS, False, "warning", "no native bf16", "bf16=False"),
        (probe(), TWO_GPUS, True, "warning", "hides", "unset"),
    ],
)
def test_what_torch_sees(
    found: dict[str, Any],
    driver: str,
    hidden: bool,
    status: Status,
    words: str,
    fix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compared with what the driver sees."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "" if hidden else "0,1")
    is_like(software.check_torch(found, "", smi(driver, 0 if driver else None), planned()), status, words, fix)


def test_a_missing_torch_fails_only_requested_training_and_a_broken_one_always() -> None:
    def check(finished: Finished, run: PlannedRun) -> Check:
        return software.check_torch(None, finished.reason, smi(""), run)

    missing = run_python(30, "-c", "raise ModuleNotFoundError(\"No module named 'torch'\")")
    is_like(check(missing, planned()), "failed", "not installed", "rg-env[train] @ git+")
    is_like(check(missing, NOT_REQUESTED), "warning", "not installed", "rg-env[train] @ git+")
    is_like(check(Finished(-11), NOT_REQUESTED), "failed", "SIGSEGV", "reinstall")


def test_a_trainer_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing package is named."""
    monkeypatch.delitem(sys.modules, "rg_env.training.trainer", raising=False)
    monkeypatch.setitem(sys.modules, "rg_env.training.rollouts", None)
    assert software.check_trainer(planned()).status == "failed"
    is_like(software.check_trainer(NOT_REQUESTED), "warning", "needs rg_env.training.rollouts")


@pytest.mark.parametrize(
    ("run", "seen", "status", "words", "fix"),
    [
        (planned(2), 2, "ok", "2 for 2", ""),
        (planned(3), 2, "failed", "3 processes and 2 GPUs", "--processes 2"),
        (planned(2, engine="vllm"), 2, "failed", "one for vLLM", "engine.kind=embedded"),
        (VLLM, 2, "ok", "2 for 1", ""),
        (planned(2, engine="vllm", host="10.0.0.2"), 2, "ok", "2 for 2", ""),
        (planned(), 0, "skipped", "no GPU", ""),
    ],
)
def test_the_number_of_gpus(run: PlannedRun, seen: int, status: Status, words: str, fix: str) -> None:
    """One for each process, and one more for a server on this machine that does not run yet."""
    is_like(software.check_count(probe(*[{}] * seen), smi(TWO_GPUS), run, server_runs=False), status, words, fix)


def test_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it NCCL can hang, unless a variable is set."""
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    is_like(software.check_peers(probe({})), "skipped", "fewer than two")
    is_like(software.check_peers(probe({}, {})), "ok", "all 2")
    apart = probe({}, {}, apart=[[0, 1]])
    is_like(software.check_peers(apart), "warning", "0 and 1", "NCCL_P2P_DISABLE=1")
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    is_like(software.check_peers(apart), "ok", "NCCL_P2P_DISABLE=1 is set")


def test_a_failed_import_is_reported_by_its_last_line() -> None:
    is_like(software.judge_import("vllm", Finished(0), "reinstall"), "ok", "")
    finished = run_python(30, "-c", "import sys; print('noise'); raise ImportError('libcudart.so.12: cannot open')")
    check = software.judge_import("flash-attn", finished, "uninstall")
    is_like(check, "failed", "cannot be imported: ImportError: libcudart.so.12: cannot open", "uninstall")


def test_models_that_cannot_be_trained(tmp_path: Path) -> None:
    """The problem is found without loading the weights."""
    folder = shutil.copytree(POLICY_DIR, tmp_path / "model")

    def is_refused(words: str, fix: str = "copy or download") -> None:
        is_like(check_model(str(folder))[0], "failed", words, fix)

    good, model = check_model(str(folder))
    is_like(good, "ok", "0.89 M parameters")
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
    is_refused("holds no model.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    is_refused("lacks part-1.safetensors")
    (folder / "chat_template.jinja").unlink()
    is_refused("no chat template", "instruction-tuned")
    is_like(check_model(str(tmp_path))[0], "failed", "holds no model", "give a folder")


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


LENGTHS, MANY = PromptLengths([100, 1024]), PromptLengths([100, 1024], [], [1024] * 256)
THREE = planned(3, engine="vllm")


@pytest.mark.parametrize(
    ("run", "free", "lengths", "status", "words", "fix"),
    [
        (THREE, 130, LENGTHS, "ok", "on GPU 0 (state 42 GB", ""),
        (
            THREE,
            100,
            LENGTHS,
            "failed",
            "about 104 GB",
            "training.per_device_train_batch_size=4 (a step stays the same)",
        ),
        (THREE, 112, LENGTHS, "warning", "about 104 GB", "training.per_device_train_batch_size=4"),
        (THREE, 30, LENGTHS, "failed", "about 104 GB", "more --processes"),
        (planned(), 80, LENGTHS, "failed", "engine's cache 30 GB", "engine.kind=vllm"),
        (planned(), 140, MANY, "failed", "engine's cache in evaluations 120 GB)", "shorter evaluation.max_tokens"),
    ],
)
def test_memory_that_does_not_suffice(
    run: PlannedRun, free: int, lengths: PromptLengths, status: Status, words: str, fix: str
) -> None:
    """A smaller micro-batch is the fix where it helps, because a step then stays the same."""
    training = run.config.training.model_copy(update={"bf16": True, "gradient_checkpointing": False})
    run = replace(run, config=run.config.model_copy(update={"training": training}))
    is_like(check_memory(run, SEVEN_B, lengths, free * 10**9, "on GPU 0"), status, words, fix)


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
    assert needed_tokens(run(), None) == 80
    assert needed_tokens(run(max_tokens=60), None) == 110
    assert needed_tokens(run(max_tokens=60), lengths) == 150


@pytest.mark.parametrize(
    ("processes", "options", "status", "words", "fix"),
    [
        (1, {}, "ok", "128 rollouts a step: 16 prompts x 8, in 2 micro-batches on each of 1 process", ""),
        (2, {}, "ok", "128 rollouts a step: 16 prompts x 8, in 1 micro-batch on each of 2 processes", ""),
        (3, {}, "failed", "not divisible by 3 processes", "training.rollouts_per_step=192"),
        (4, {}, "failed", "does not divide the 32 rollouts", "training.per_device_train_batch_size=16 or 32"),
        (1, {"num_generations": 12}, "failed", "not divisible by num_generations=12", "rollouts_per_step=192"),
    ],
)
def test_batches(processes: int, options: dict[str, int], status: Status, words: str, fix: str) -> None:
    """The batch must be divisible over all processes."""
    is_like(check_batch(planned(processes, **options).with_model("tiny")), status, words, fix)


@pytest.mark.parametrize(
    ("context", "lengths", "evaluation_tokens", "status", "words", "fix"),
    [
        (128, ([20], [50]), None, "ok", "all 2 within 50 tokens, the longest has 50", ""),
        (128, ([20, 51],), None, "failed", "1 of 2 are longer", "training.max_prompt_length=51"),
        (128, ([20], [51]), None, "failed", "1 of 2 are longer", "training.max_prompt_length=51"),
        (70, ([20, 50],), None, "failed", "more than the 70", "training.max_tokens=20"),
        (128, ([20], [50], [10, 98]), None, "ok", "has 50; 2 more in evaluations, the longest has 98", ""),
        (127, ([20], [50], [10, 98]), None, "failed", "98 tokens, with 30 new", "evaluation.max_tokens=29,"),
        (128, ([20], [50], [10, 98]), 31, "failed", "with 31 new ones", "evaluation.max_tokens=30,"),
        (128, ([20], [50]), 79, "failed", "50 tokens, with 79 new", "evaluation.max_tokens=78,"),
        (98, ([20], [50], [10, 98]), 5, "failed", "98 tokens, with 5 new ones", "other tasks, or"),
    ],
)
def test_prompts(
    context: int, lengths: tuple[list[int], ...], evaluation_tokens: int | None, status: Status, words: str, fix: str
) -> None:
    """Against their limit, and with the completion against the model's context."""
    run = planned(max_prompt_length=50, max_tokens=30)
    config = run.config.model_copy(update={"evaluation": EvaluationConfig(max_tokens=evaluation_tokens)})
    is_like(judge_prompts(replace(run, config=config), context, PromptLengths(*lengths)), status, words, fix)


class _Server(BaseHTTPRequestHandler):
    """Answers as vLLM does."""

    owner, world = "vllm", True

    def do_GET(self) -> None:
        entry = {"id": "served", "owned_by": self.owner, "max_model_len": 512}
        answers = {"/health": {}, "/v1/models": {"data": [entry]}, "/version": {"version": "0.32.0"}}
        if self.world:
            answers["/get_world_size"] = {"world_size": 2}
        self.send_response(200 if self.path in answers else 404)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(self.path)).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Starts a server on a free port."""
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


def test_what_listens_at_the_servers_port(serve: Callable[..., int]) -> None:
    """Nothing, the right server, another model, too short a context, another kind of server."""

    def check(port: int, model: str = "served", tokens: int = 512) -> Check:
        return machine.check_server(planned(engine="vllm", port=port), model, tokens)[0]

    good = serve()
    is_like(check(good), "ok", "serves 'served', 512 tokens, 2 workers")
    is_like(check(good, model="mine"), "failed", "serves 'served', not 'mine'", "rg-env vllm mine")
    is_like(check(good, tokens=600), "failed", "takes 512 tokens", "--max-model-len 600")
    is_like(check(serve(owner="rg-env")), "failed", "is not a vLLM server", "another engine.port")
    is_like(check(serve(world=False)), "failed", "takes no weights", "another engine.port")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    is_like(check(port), "warning", "nothing listens", f"rg-env vllm served --host 127.0.0.1 --port {port}")
    away = planned(engine="vllm", host="nowhere.invalid")
    is_like(machine.check_server(away, "served", 1)[0], "warning", "nothing listens", "check engine.host")
    assert machine.check_server(planned(), None, 1)[0].status == "skipped"


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        is_like(machine.check_ports(planned(2), port), "warning", f"{port}: something else listens", "a free one")
    is_like(machine.check_ports(planned(2), port), "ok", f"{port} free")
    assert machine.check_ports(planned()).status == "skipped"


@pytest.mark.parametrize(
    ("connections", "limits", "status", "words", "fix"),
    [
        (0, (1024, 4096), "ok", "limit 1024", ""),
        (1024, (1024, 1048576), "failed", "needs 1536", "ulimit -n 65536"),
        (1024, (1024, -1), "failed", "needs 1536", "ulimit -n 65536"),
        (1024, (1024, 4096), "failed", "needs 1536", "ulimit -n 4096"),
        (1024, (1024, 1024), "failed", "needs 1536", "administrator"),
        (1024, (-1, -1), "ok", "no limit", ""),
    ],
)
def test_open_files(connections: int, limits: tuple[int, int], status: Status, words: str, fix: str) -> None:
    """Each rollout in flight holds a connection."""
    is_like(machine.check_open_files(connections, limits), status, words, fix)


def test_shared_memory() -> None:
    """Docker's 64 MB are too few for several processes."""
    is_like(machine.check_shared_memory(VLLM, 64 * 2**20), "warning", "67 MB", "--shm-size")
    is_like(machine.check_shared_memory(planned(), 64 * 2**20), "ok", "67 MB")
    is_like(machine.check_shared_memory(VLLM, 8 * GIB), "ok", "8.6 GB")
    is_like(machine.check_shared_memory(VLLM, None), "skipped", "no /dev/shm")


def test_room_for_checkpoints(tmp_path: Path) -> None:
    """One must fit; all should."""
    free = shutil.disk_usage(tmp_path).free
    run = planned(output_dir=str(tmp_path / "run"))  # 200 steps, a checkpoint every 100
    is_like(machine.check_output(run, 1000), "ok", "for 2 checkpoints of 0 MB")
    is_like(machine.check_output(run, free * 2 // 3), "warning", "not all fit", "save_total_limit")
    is_like(machine.check_output(run, 2 * free), "failed", "not all fit", "another output folder")
    (tmp_path / "file").touch()
    is_like(machine.check_output(planned(output_dir=str(tmp_path)), 1), "failed", "not empty", "another output folder")


def test_wandb_is_needed_only_if_it_is_reported_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key comes from the environment or the netrc file, which is never quoted, even if it is damaged."""
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    config = planned().config
    logging = config.logging.model_copy(update={"report_to": ["tensorboard", "wandb"]})
    reported = PlannedRun(config.model_copy(update={"logging": logging}))
    is_like(machine.check_wandb(planned()), "ok", "no login")
    is_like(machine.check_wandb(reported), "failed", "no login", "wandb login")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user passwerd s3cr3t-of-mine\n")
    assert "s3cr3t" not in machine.check_wandb(reported).line()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password s3cr3t-of-mine\n")
    is_like(machine.check_wandb(reported), "ok", "login found")
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    is_like(machine.check_wandb(reported), "ok", "offline")
