"""Tests of `rg-env doctor` on this machine, and of its checks of GPUs, servers, models, prompts, memory and disks on
made-up findings."""

import json
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.processes import Finished
from rg_env.jobs import doctor as checks
from rg_env.jobs.doctor import Check, Gpus, Model, PlannedRun, PromptLengths, decoded, planned_run
from rg_env.jobs.launch import longest_sequence
from rg_env.tiny import POLICY_DIR
from rg_env.training.config.schema import EvaluationConfig
from rg_env.training.memory_estimate import ModelShape

CONFIG = (
    "model: {name: tiny}\ntasks: {leg_counting: {}}\nsplits: {num_train_examples: 16, num_eval_examples: 4}\n"
    "training: {rollouts_per_step: 8, max_prompt_length: 60, max_tokens: 90}\n"
    "evaluation: {tasks: {lcm: {num_examples: 3}, legs: {task: leg_counting, num_examples: 2}}}\n"
)
GIB = 2**30
NO_KERNELS = "CUDA error: no kernel image is available for execution on the device"
# Output of nvidia-smi for the fields that the doctor queries.
ONE_GPU = "0, NVIDIA A100-SXM4-80GB, 81920 MiB, 3 MiB, 550.54.15\n"
TWO_GPUS = ONE_GPU + "1, NVIDIA A100-SXM4-80GB, 81920 MiB, 74211 MiB, 550.54.15\n"
BROKEN = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that ...\n\n"
LOST = ONE_GPU + "Unable to determine the device handle for GPU1: GPU is lost.\n"
SEVEN_B = Model("7B", None, ModelShape(7_615_616_512, 28, 3584, 152_064, 512), 32_768)
Run = Callable[..., tuple[int, str, str]]


def planned(processes: int = 1, engine: str = "embedded", **training: Any) -> PlannedRun:
    """Return a run with these settings in `training`, and a model other than the tiny policy."""
    given = [f"training.{key}={json.dumps(value)}" for key, value in training.items()]
    return planned_run(None, ["model.name=org/model", f"engine.kind={engine}", *given], processes)


VLLM = planned(engine="vllm")


def is_like(check: Check, pattern: str) -> None:
    """Check that a line matches `pattern`: the status, then parts of the finding and the fix, separated by
    asterisks."""
    assert fnmatchcase(check.line(), f"{pattern}*"), check.line()


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("configs") / "run.yaml"
    file.write_text(CONFIG)
    return str(file)


@pytest.fixture
def doctor(rg_env: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return a function that runs `rg-env doctor` without a GPU, checks its exit code and returns lines by name."""
    monkeypatch.setattr(checks, "run_python", lambda *_: Finished(0, '{"usable": false, "devices": [], "problem": ""}'))
    monkeypatch.setattr(checks, "ask_gpus", Gpus)

    def lines(*arguments: str) -> dict[str, str]:
        code, text, errors = rg_env("doctor", *arguments)
        *found, closing = text.splitlines()
        failed = sum(line.startswith("failed ") for line in found)
        assert (code, errors) == (int(failed > 0), "")
        assert closing.endswith(f", {failed} failed")
        return {line.split()[1]: line for line in found}

    return lines


@pytest.mark.slow
def test_this_machine_can_train_the_tiny_policy(rg_env: Run, tmp_path: Path, environ: Callable[..., None]) -> None:
    """The command writes no files and prints no part of a token."""
    token = "hf_QxZjKvWqYpLmNbTr"
    environ(HF_TOKEN=token, WANDB_API_KEY=token[::-1], CUDA_VISIBLE_DEVICES=None)
    code, text, errors = rg_env("doctor")
    assert code == 0, text
    *lines, closing = text.splitlines()
    assert closing.endswith(" 0 failed")
    assert {line.split()[0] for line in lines} <= {"ok", "warning", "skipped"}
    assert any("Hugging Face token found" in line for line in lines)
    assert any("within 160 tokens" in line for line in lines)
    for secret in (token, token[::-1]):
        assert not any(secret[at : at + 6] in text + errors for at in range(len(secret) - 5))
    assert list(tmp_path.iterdir()) == []


def test_a_config_is_checked_including_its_evaluations(doctor: Callable[..., dict[str, str]], config: str) -> None:
    """Overrides apply, and fixes name the config's keys."""
    plain, adapters = doctor(config), doctor(config, "lora.r=4")
    assert "all 20 prompts are within 60 tokens; the longest in evaluations has " in plain["prompts"]
    assert adapters["memory"].split("(")[1] != plain["memory"].split("(")[1]  # adapters need less memory
    short = doctor(config, "training.max_prompt_length=20")["prompts"]
    assert "longer than 20 tokens" in short
    assert "; fix: set training.max_prompt_length=" in short
    long = "evaluation.tasks.long={task: word_sorting, config: {min_words: 90, max_words: 100}, num_examples: 1}"
    assert "exceeds the model's context of 512" in (line := doctor(config, long)["prompts"])
    assert line.startswith("failed ")


def test_a_config_with_own_data_is_checked(doctor: Callable[..., dict[str, str]], config: str, folder: Path) -> None:
    """Prompt lengths are those of the file's rows; data on the Hub is not downloaded to measure them."""
    rows = [{"question": f"{number} + 1", "answer": number + 1} for number in range(30)]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = [config, "tasks=null", "splits.num_eval_examples=6", "evaluation=null"]
    assert "all 30 prompts are within 60 tokens" in doctor(*own, "data=own.jsonl")["prompts"]
    (folder / "own.jsonl").write_text("{")
    assert "own.jsonl: line 1 is not JSON" in doctor(*own, "data=own.jsonl")["prompts"]
    assert doctor(*own, "data=nobody/nothing")["prompts"].startswith("skipped ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tasks=leg_countin"], "unknown task 'leg_countin': did you mean 'leg_counting'"),
        (["CONFIG", "--processes", "3"], "8 rollouts are not divisible by 3 processes"),
        (["CONFIG", "--max-tokens", "3"], "to set this config key, write training.max_tokens=VALUE"),
    ],
)
def test_bad_input_exits_with_code_2(error_of: Any, config: str, arguments: list[str], words: str) -> None:
    """The error is reported before any check runs."""
    assert words in error_of("doctor", *(config if argument == "CONFIG" else argument for argument in arguments))


@pytest.mark.parametrize(
    ("output", "code", "torch", "run", "pattern"),
    [
        # a broken driver is fatal unless one process with the embedded engine can use the CPU
        (TWO_GPUS, 0, {"devices": [80 * GIB, 6 * GIB]}, VLLM, "ok *1, NVIDIA A100-SXM4-80GB, *works on 2 GPUs"),
        ("No devices were found", 6, {}, planned(2), "ok *no NVIDIA GPU"),
        ("", None, {}, planned(), "ok *no NVIDIA GPU"),
        (BROKEN, 9, {}, planned(), "warning *nvidia-smi: NVIDIA-SMI has failed*update the NVIDIA driver"),
        (BROKEN, 9, {}, VLLM, "failed *nvidia-smi: NVIDIA-SMI has failed*fix: "),
        (LOST, 15, {}, VLLM, "failed *GPU is lost"),
        (ONE_GPU, 0, {"problem": "No CUDA GPUs"}, planned(), "warning *No CUDA GPUs*CUDA_VISIBLE_DEVICES"),
        (ONE_GPU, 0, {"problem": "driver on your system is too old"}, planned(2), "failed *too old*fix: "),
        (ONE_GPU, 0, {"problem": NO_KERNELS, "usable": True}, planned(), "failed *no kernel image*install torch"),
        (ONE_GPU, 0, None, planned(), "failed *torch does not work"),
        # one GPU per process, and one for vLLM unless it shares the only GPU
        (TWO_GPUS, 0, {"devices": [80 * GIB]}, planned(2), "failed *2 processes, but torch sees 1 GPU*--processes 1"),
        (TWO_GPUS, 0, {"devices": [80 * GIB] * 2}, planned(2, "vllm"), "failed *leave none of the 2 GPUs for vLLM"),
        (ONE_GPU, 0, {"devices": [80 * GIB]}, VLLM, "ok *works on 1 GPU"),
    ],
)  # fmt: skip
def test_gpus(
    monkeypatch: pytest.MonkeyPatch, output: str, code: int | None, torch: Any, run: PlannedRun, pattern: str
) -> None:
    probed = {"usable": False, "devices": [], "problem": ""} | (torch or {})
    monkeypatch.setattr(checks, "run", lambda *_: Finished(code, output))
    monkeypatch.setattr(checks, "run_python", lambda *_: Finished(1 if torch is None else 0, json.dumps(probed)))
    is_like(checks.check_gpus(run, checks.ask_gpus()), pattern)


def test_packages_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the trainer, the checks of the model do not run; without vLLM, they do."""

    def names(missing: str) -> list[str]:
        def run_python(*arguments: Any) -> Finished:
            return Finished(1, "", f"No module named '{missing}'") if missing in arguments[-1] else Finished(0, "{}")

        monkeypatch.setattr(checks, "run_python", run_python)
        packages, *others = checks.diagnose(planned_run(None, ["engine.kind=vllm"]))
        is_like(packages, f"failed *No module named '{missing}'; fix: run `pip install *")
        return [check.name for check in others]

    before = ["gpus", "shared memory", "logins"]
    assert names("rg_env.training.trainer") == before
    assert names("vllm") == [*before, "model", "prompts", "server", "memory", "output folder"]


def memory(run: PlannedRun, free: int, *lengths: list[int]) -> Check:
    training = run.config.training.model_copy(update={"bf16": True, "gradient_checkpointing": False})
    run = replace(run, config=run.config.model_copy(update={"training": training}))
    return checks.check_memory(run, SEVEN_B, PromptLengths([100, 1024], *lengths), free * 10**9, "on the GPU")


def prompts(context: int, *lengths: list[int], evaluation_tokens: int | None = None) -> Check:
    run = planned(max_prompt_length=50, max_tokens=30)
    config = run.config.model_copy(update={"evaluation": EvaluationConfig(max_tokens=evaluation_tokens)})
    return checks.judge_prompts(replace(run, config=config), context, PromptLengths(*lengths))


MANY = [[], [1024] * 256]  # prompts of evaluations
THREE = planned(3, "vllm", rollouts_per_step=120)


@pytest.mark.parametrize(
    ("check", "pattern"),
    [
        # a smaller micro-batch is suggested if it is enough, because it does not change a step
        (memory(THREE, 130), "ok *about 104 GB (state 42 GB, *on the GPU"),
        (memory(THREE, 100), "failed *about 104 GB*training.per_device_train_batch_size=4 (the number of rollouts *"),
        (memory(THREE, 30), "failed *about 104 GB*LoRA*more --processes"),
        (memory(planned(), 80), "failed *state 137 GB, *generation 15 GB*LoRA, a smaller model"),
        (
            memory(planned(per_device_train_batch_size=1), 150, *MANY),
            "failed *generation 61 GB)*engine.max_batch_size, or use LoRA",
        ),
        # prompts are checked against the limit and, with the completion, against the model's context
        (prompts(128, [20], [50]), "ok *all 2 prompts are within 50 tokens; the longest in evaluations has 50"),
        (prompts(128, [20, 51]), "failed *1 of 2 prompts *training.max_prompt_length=51"),
        (prompts(70, [20, 50]), "failed *exceeds *context of 70*training.max_tokens=20"),
        (prompts(128, [20], [50], [10, 98]), "ok *the longest in evaluations has 98"),
        (prompts(127, [20], [50], [10, 98]), "failed *98 tokens with 30 new*evaluation.max_tokens=29,"),
        (prompts(128, [20], [50], evaluation_tokens=79), "failed *50 tokens with 79 new*evaluation.max_tokens=78,"),
        (prompts(98, [20], [50], [10, 98], evaluation_tokens=5), "failed *98 tokens with 5 new*other tasks, or"),
    ],
)
def test_findings_and_fixes(check: Check, pattern: str) -> None:
    is_like(check, pattern)


def test_memory_is_estimated_for_the_micro_batch_that_is_computed() -> None:
    """A process computes only its share of a step if that is smaller than `per_device_train_batch_size`."""
    sizes = {"rollouts_per_step": 32, "num_generations": 8}
    large, share = (memory(planned(8, **sizes, per_device_train_batch_size=size), 100).finding for size in (64, 4))
    assert large == share


def test_shared_memory_and_errors_in_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's default of 64 MB is too little for several processes. A check that fails itself is a warning, and each
    check is printed on one line."""
    is_like(Check("failed", "one\ntwo", "do\tthat", name="ports"), "failed   ports         one two; fix: do that")
    for size, pattern in ((64 * 2**20, "warning *67 MB*--shm-size"), (8 * GIB, "ok *8.6 GB")):
        monkeypatch.setattr("shutil.disk_usage", lambda _, size=size: shutil._ntuple_diskusage(size, 0, size))
        is_like(checks.check_shared_memory(VLLM), pattern)
    assert checks.check_shared_memory(planned()).status == "skipped"
    is_like(checks._run("disk", lambda: 1 / 0), "warning  disk *could not be checked: ZeroDivisionError")


def test_models_that_cannot_be_trained(tmp_path: Path) -> None:
    """Incomplete or unsuitable model folders are detected without loading the weights."""
    folder = shutil.copytree(POLICY_DIR, tmp_path / "model")
    good = checks.check_model(str(folder))
    is_like(good, "ok *0.89 M parameters")
    assert good.value.shape.parameters == 885_888  # tied weights count once
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    is_like(checks.check_model(str(folder)), "failed *does not contain all weights*copy or download")
    (folder / "chat_template.jinja").unlink()
    is_like(checks.check_model(str(folder)), "failed *no chat template")
    is_like(checks.check_model(str(tmp_path)), "failed *is not a model folder*another model folder")


def test_a_model_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection, an interrupted download is a failure."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("rg_env.inference.models.hub_answers", lambda: False)
    repository = tmp_path / "models--someone--model"
    snapshot = shutil.copytree(POLICY_DIR, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    is_like(checks.check_model("someone/model"), "ok *on this machine")
    (snapshot / "model.safetensors").unlink()
    is_like(checks.check_model("someone/model"), "failed *2 MB to download, but the Hub cannot be reached")


def test_token_capacity_that_engines_need() -> None:
    """The embedded engine also caches evaluations, and a server must accept their longest prompts."""
    lengths = PromptLengths([20], [50], [90] * 9)

    def run(engine: str = "embedded", **evaluation: Any) -> PlannedRun:
        config = planned(1, engine, max_prompt_length=50, max_tokens=30, rollouts_per_step=16).config
        return PlannedRun(config.model_copy(update={"evaluation": EvaluationConfig(**evaluation)}))

    assert decoded(run(), lengths) == (20, 20 * 120)
    assert decoded(run(rollouts_per_example=4, max_tokens=60), lengths)[1] == 5 * 10 * 150
    assert decoded(run(rollouts_per_example=99), lengths)[1] == 512 * 120
    assert decoded(run(before=False, after=False, every=0), lengths)[1] == 16 * 120
    assert decoded(run("vllm"), lengths) == (0, 0)
    assert longest_sequence(run().config, ()) == 80
    assert longest_sequence(run(max_tokens=60).config, ()) == 110
    assert longest_sequence(run(max_tokens=60).config, lengths.others) == 150


def test_programs_that_listen_on_the_servers_port(serve: Callable[..., Any]) -> None:
    """The port may have no server, a suitable one, one with another model or too short a context, or another
    program."""
    model = {"id": "served", "owned_by": "vllm", "max_model_len": 512}
    vllm = {"health": (200, {}), "models": (200, {"data": [model]}), "version": (200, {"version": "0.32.0"})}

    def check(port: int, model: str = "served", host: str = "127.0.0.1", **training: int) -> Check:
        run = planned(1, "vllm", **{"max_prompt_length": 256, "max_tokens": 256, **training})
        engine = run.config.engine.model_copy(update={"host": host, "port": port})
        run = PlannedRun(run.config.model_copy(update={"engine": engine}))
        return checks.check_server(run, model, PromptLengths())

    good = serve(**vllm, get_world_size=(200, {"world_size": 2})).port
    is_like(check(good), "ok *serves 'served' with up to 512 tokens")
    is_like(check(good, model="mine"), "failed *serves 'served', not 'mine'*rg-env vllm mine")
    is_like(check(good, max_tokens=344), "failed *accepts 512 tokens*--max-model-len 600")
    is_like(check(serve(health=(200, {})).port), "failed *is not a vLLM server*another engine.port")
    is_like(check(serve(**vllm).port), "failed *does not accept weights*another engine.port")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    is_like(check(port), f"warning *nothing is listening*rg-env vllm served *--port {port}")
    is_like(check(port, host="nowhere.invalid"), "warning *nothing is listening*correct engine.host")
    assert checks.check_server(planned(), "served", None).status == "skipped"


def test_disk_space_for_checkpoints(tmp_path: Path) -> None:
    """Too little space for one checkpoint is a failure, and too little for all of them a warning."""
    free = shutil.disk_usage(tmp_path).free

    def check(parameters: int, folder: Path) -> Check:
        return checks.check_output(planned_run(None, ["model=org/m", f"output.dir={folder}"]), parameters)

    run = tmp_path / "run"  # saves a checkpoint of 12 bytes per parameter every 100 of 200 steps
    is_like(check(100, run), "ok *for 2 checkpoints of 0 MB")
    is_like(check(free * 2 // 36, run), "warning *not enough for*save_total_limit")
    is_like(check(2 * free // 12, run), "failed *not enough for*another output folder")
    (tmp_path / "file").touch()
    is_like(check(1, tmp_path), "failed *not empty*another output folder")


def test_logins_are_needed_only_if_they_are_used(tmp_path: Path, environ: Callable[..., None]) -> None:
    """A damaged netrc file is not quoted."""
    environ(WANDB_API_KEY=None, WANDB_MODE=None, NETRC=str(tmp_path / "netrc"), HOME=str(tmp_path), HF_TOKEN=None)

    def check(*overrides: str) -> Check:
        return checks.check_logins(planned_run(None, overrides))

    is_like(check(), "ok *no Hugging Face token")
    is_like(check("logging.report_to=[tensorboard, wandb]"), "failed *wandb*not logged in*wandb login")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user passwerd s3cr3t-of-mine\n")
    assert "s3cr3t" not in check("logging.report_to=wandb").line()
    is_like(check("hub.enabled=true", "hub.repo_id=me/run"), "failed *HF_TOKEN")
