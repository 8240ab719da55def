"""Checks before anything is loaded: in a dry run and before training, with the same messages and without torch."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from data_files import data
from hub_server import HubServer
from run_code import without_progress

from rg_env.core.data.manifest import make_manifest
from rg_env.core.run_folder import RunFolder
from rg_env.errors import InputError
from rg_env.tiny import POLICY_DIR
from rg_env.training import load_train_config, run_config
from rg_env.training.config.schema import LoggingConfig
from rg_env.training.preflight import check_logins, check_start

HERE = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "HF_TOKEN", "RANK"))}
NO_LOGIN = {**HERE, "HF_HOME": "/nowhere", "HOME": "/nowhere"}
CONFIG = """
model: tiny
tasks: chain_sum
"""
DATA = [{"question": f"{i} + 1 =", "answer": i + 1} for i in range(40)]


@pytest.fixture(autouse=True)
def files(here: Path) -> None:
    """A config, data, and folders of runs in the working directory."""
    (here / "run.yaml").write_text(CONFIG)
    (here / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in DATA))
    (here / "cut.jsonl").write_text('{"question": "1 + 1", "ans')
    (here / "old" / "checkpoint-5").mkdir(parents=True)
    (here / "old" / "metrics.jsonl").touch()
    (here / "new").mkdir()
    (here / "new" / "metrics.jsonl").touch()
    (here / "empty").mkdir()


COMMAND = """
import atexit, sys
atexit.register(lambda: "torch" in sys.modules and print("torch!", file=sys.stderr))
from rg_env.cli.main import main
main()
"""
COMMANDS = """
import atexit, json, os, sys
import rg_env.cli.main, rg_env.core.data.dataset, rg_env.evaluation.load, rg_env.training.preflight

codes = []
for number, words in enumerate(json.loads(sys.argv[1])):
    if not (pid := os.fork()):
        atexit.register(lambda: "torch" in sys.modules and print("torch!", file=sys.stderr))
        os.dup2(os.open(f"errors-{number}", os.O_CREAT | os.O_WRONLY, 0o600), 2)
        sys.argv = ["rg-env", *words]
        rg_env.cli.main.main()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(json.dumps(codes))
"""
"""Runs each command in a fork of one process, because the imports take longest."""


def without_torch(*arguments: str, code: str = COMMAND, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `rg-env` without any login; a line on standard error reports that torch was imported."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {**NO_LOGIN, **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    done.stderr = without_progress(done.stderr)
    return done


def train(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return without_torch("train", "run.yaml", *arguments, **variables)


def test_problems_are_reported_on_one_line(here: Path) -> None:
    """Training and other commands refuse invalid arguments, data and models before torch is imported."""
    cases = data("command_mistakes")["rg-env"]
    done = without_torch(json.dumps([shlex.split(command) for command, _ in cases]), code=COMMANDS)
    assert done.returncode == 0, done.stderr
    for number, (code, (command, words)) in enumerate(
        zip(json.loads(done.stdout.splitlines()[-1]), cases, strict=True)
    ):
        errors = without_progress((here / f"errors-{number}").read_text())
        assert (code, errors.count("\n")) == (2, 1), f"{command}: {errors}"
        assert words in errors, f"{command}: {errors}"


def test_a_dry_run_looks_the_model_up_on_the_hub(here: Path) -> None:
    """A misspelled name is an error; without a connection, a note says that it was not checked."""
    with HubServer() as hub:
        hub.add("me/legs", {"config.json": b"{}"})
        online = {**hub.environment, "HF_HUB_OFFLINE": "0", "HF_HOME": str(here / "hf")}
        assert "note" not in (done := train("model=me/legs", "--dry-run", **online)).stdout
        assert done.returncode == 0, done.stderr
        done = train("model=me/legz", "--dry-run", **online)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "'me/legz' is neither a folder nor a model on the Hub; if the model is private, " in done.stderr
    done = train("model=me/legs", "--dry-run", HF_HUB_OFFLINE="1")
    assert "#   note        the model 'me/legs' was not checked: it is not in the cache, and" in done.stdout


def test_prompts_are_measured_before_weights_are_loaded(here: Path) -> None:
    """Loading a large model takes minutes. The model here has no weights and could not be loaded."""
    shutil.copytree(POLICY_DIR, here / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    config = load_train_config("run.yaml", ["model=model", "training.max_prompt_length=4", "training.max_tokens=90"])
    with pytest.raises(InputError, match="training prompts are longer than max_prompt_length=4 tokens"):
        run_config(config)


def test_variables_of_the_chat_template_are_checked_before_weights_are_loaded(here: Path) -> None:
    """The config's variables are those of its environment, from which the trainer takes them."""
    shutil.copytree(POLICY_DIR, here / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    sizes = ["splits.num_train_examples=16", "splits.num_eval_examples=2"]
    config = load_train_config("run.yaml", ["model=model", *sizes, "prompt.chat_template_kwargs.thinks=true"])
    assert config.environment().prompt_options.chat_template_kwargs == {"thinks": True}
    with pytest.raises(InputError, match="chat_template_kwargs: the chat template of model does not use thinks"):
        run_config(config)


def test_a_server_that_has_not_started(here: Path, rg_env: Callable[..., tuple[int, str, str]]) -> None:
    """A dry run prints a note; a run waits for the server and then raises an error."""
    code, printed, errors = rg_env("train", "run.yaml", "engine.kind=vllm", "engine.port=1", "--dry-run")
    assert code == 0, errors
    assert "\n#   note        a vLLM server must answer at 127.0.0.1:1 when" in printed
    _, _, errors = rg_env("train", "run.yaml", "engine.kind=vllm", "engine.port=1", "engine.connect_timeout=0.1")
    assert "no vLLM server at 127.0.0.1:1 within 0.1 s" in errors


@pytest.mark.parametrize(
    ("key", "words"), [({}, "not logged in"), ({"WANDB_API_KEY": "short"}, "WANDB_API_KEY invalid: API key must have")]
)
def test_wandb_without_a_login(here: Path, key: dict[str, str], words: str) -> None:
    """Without this check, wandb would prompt for a login or raise its own error. In a dry run, which needs no login, it
    is a note."""
    done = train("logging.report_to=wandb", WANDB_DIR=str(here), **key)
    assert done.returncode == 2
    assert f"cannot report to wandb: {words}" in done.stderr
    assert "set WANDB_API_KEY in .env" in done.stderr
    assert "\nerror: " in f"\n{done.stderr}"
    start = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_DIR", str(here))
        patch.setenv("WANDB_API_KEY", "short")
        patch.setenv("HF_HOME", "/nowhere")
        patch.delenv("HF_TOKEN", raising=False)
        overrides = ["logging.report_to=wandb", "hub.enabled=true", "hub.repo_id=me/x"]
        start = check_start(load_train_config("run.yaml", overrides), wait=False)
    assert [note.partition(":")[0] for note in start.notes] == ["hub.enabled", "cannot report to wandb"]


def test_a_dry_run_says_how_many_distinct_questions_there_are(here: Path) -> None:
    """The numbers come from the task table, so nothing is drawn. With `on_few: error`, too few are an error."""
    overrides = ["tasks=[tower_of_hanoi, chain_sum]", "splits.num_train_examples=600", "splits.num_eval_examples=100"]
    start = check_start(load_train_config("run.yaml", overrides), wait=False)
    assert [re.sub(r"about \d+|\d\.\d", "N", note) for note in start.notes] == [
        "task 'tower_of_hanoi' has N distinct training questions, not 300: each is used N times on average",
        "task 'tower_of_hanoi' has N distinct evaluation questions, not 50: all are used",
    ]
    with pytest.raises(InputError, match=r"questions, not 300: request fewer, because splits\.on_few is 'error'"):
        check_start(load_train_config("run.yaml", [*overrides, "splits.on_few=error"]), wait=False)


LONG = ["tasks=null", "data.path=long.jsonl", "splits.num_eval_examples=4", "training.max_prompt_length=120",
        "training.max_tokens=60", "training.rollouts_per_step=64"]  # fmt: skip


def test_rows_with_long_prompts(here: Path, rg_env: Callable[..., tuple[int, str, str]]) -> None:
    """The error names the row of the longest prompt, also in a dry run. `data.too_long=drop` omits and counts them."""
    rows = [{**row, "question": row["question"] + " 1 +" * 60 * (number in (6, 9))} for number, row in enumerate(DATA)]
    (here / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, error = rg_env("train", "run.yaml", *LONG, "--dry-run")
    assert code == 2
    assert re.search(r"2 of 36 training prompts are longer than max_prompt_length=120 tokens \(the longest has", error)
    assert re.search(r"line (7|10) of long.jsonl, '(6|9) \+ 1 = 1 \+.*data.too_long=drop", error)
    code, printed, _ = rg_env("train", "run.yaml", *LONG, "data.too_long=drop", "--dry-run")
    assert code == 0
    assert "long.jsonl: 2 of 40 rows omitted because their prompts are longer than max_prompt_length=120" in printed
    assert re.search(r"#   prompts     all 38 prompts are within 120 tokens", printed)
    assert re.search(r"#   memory      each process needs about", printed)


def test_the_rows_of_own_data(here: Path, rg_env: Callable[..., tuple[int, str, str]]) -> None:
    """All questions except those for evaluation are used for training, as the plan shows."""
    overrides = ["tasks=null", "data.path=data.jsonl", "splits.num_eval_examples=8"]
    start = check_start(load_train_config("run.yaml", overrides))
    assert start.rows is not None
    assert [len(rows) for rows in start.rows] == [32, 8]
    _, printed, _ = rg_env("train", "run.yaml", *overrides, "--dry-run")
    assert "\n#   data        data.jsonl\n#   questions   32 to train on, 3200 prompts: 100 epochs\n" in printed
    epochs = load_train_config("run.yaml", [*overrides, "training.num_train_epochs=3"])
    assert (epochs.training_for(start.train_rows).max_steps, epochs.training_for()) == (6, epochs.training)
    with pytest.raises(InputError, match="it has 'question', 'answer'"):
        check_start(load_train_config("run.yaml", [*overrides, "data.answer_column=Answer"]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("script: examples/train_minimal.py --seed 3\nenvironment: {}\n", "this file records a script's run"),
        ("models: [tiny]\ntasks: [maze]\n", "this is an evaluation config: use rg-env eval"),
        ("distributed_type: 'NO'\nuse_cpu: true\n", "this is an accelerate config: pass it to `accelerate launch"),
    ],
)
def test_configs_of_another_kind_are_refused_in_one_line(here: Path, text: str, words: str) -> None:
    (here / "run.yaml").write_text(text)
    with pytest.raises(InputError, match=rf"^run\.yaml: {words}"):
        load_train_config("run.yaml")


def test_vllm_cannot_train_a_gguf_file(here: Path) -> None:
    """vLLM would serve its quantized weights, which cannot be updated."""
    (here / "m.gguf").touch()
    options = ["model.name=./m.gguf", "engine.kind=vllm"]
    with pytest.raises(InputError, match=r"vLLM cannot update the weights of a GGUF file: set engine.kind=embedded"):
        check_start(load_train_config(here / "run.yaml", options), wait=False)


def test_wandb_reads_no_server_from_the_working_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may have been downloaded, and W&B sends the key to the server in `wandb/settings`."""
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    (here / "wandb").mkdir()
    file, logging = here / "wandb/settings", LoggingConfig(report_to=["wandb"])
    for line in ("base_url = http://127.0.0.1:9", "base_url: http://127.0.0.1:9", "https_proxy = x", "API_KEY = 1"):
        file.write_text(f"[default]\nproject = p\n{line}\n")
        with pytest.raises(InputError, match=r"^wandb/settings in this folder sets .*, which may send your key"):
            check_logins(logging)
    file.write_text("[default]\nentity = me\nproject = p\nbase_url = https://api.wandb.ai\n")
    offline = SimpleNamespace(settings=SimpleNamespace(mode="offline"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(setup=lambda: offline, Error=ValueError))
    check_logins(logging)


def test_a_resumed_run_keeps_its_tasks_and_seeds(here: Path) -> None:
    """Other weights and more steps are checked when the checkpoint is loaded."""
    config = load_train_config("run.yaml", ["output.dir=old"])
    train, evaluation = config.row_requests()
    rows = make_manifest(config.mixture, {"train": ((), train.seed), "eval": ((), evaluation.seed)})
    RunFolder(here / "old").write_manifest({**rows, "versions": {"reasoning-gym": "0.0"}})
    for overrides, words in (
        ([], None),
        (["tasks.chain_sum.weight=2", "training.max_steps=9"], None),
        (["tasks=gcd"], "the list of tasks is ['chain_sum'] in the manifest but ['gcd'] here"),
        (["tasks.chain_sum.config.max_terms=9"], "the config of task chain_sum is"),
        (
            ["seed=1"],
            "the seed of the train rows is 0 in the manifest but 1 here; use its tasks and seeds, or start a new run",
        ),
    ):
        changed = load_train_config("run.yaml", ["output.dir=old", *overrides])
        with pytest.raises(InputError, match=re.escape(words)) if words else contextlib.nullcontext():
            check_start(changed, resume="auto", wait=False)
