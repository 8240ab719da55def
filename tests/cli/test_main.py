"""Tests of the `rg-env` command as run from a shell."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_samples import write_run
from run_code import run_code

import rg_env as rg_env_package
from rg_env.cli.main import make_parser
from rg_env.tiny import POLICY_DIR

Run = Callable[..., tuple[int, str, str]]
CHECKOUT = Path(__file__).parents[2]
PROGRAM = str(Path(sys.executable).with_name("rg-env"))
SHORTEST_PATHS = ["eval", "--models", "tiny", "--tasks", "shortest_path"]
TINY_RUN = str(CHECKOUT / "configs/train/tiny.yaml")


def test_tasks_lists_all(rg_env: Run) -> None:
    """The listing shows each task's figures, and can be filtered by category, sorted, and printed as JSON."""
    code, listing, _ = rg_env("tasks")
    assert code == 0
    records = json.loads(rg_env("tasks", "--json")[1])
    assert len(records) == 105
    assert [line.split()[0] for line in listing.splitlines()[1:106]] == [each["name"] for each in records]
    (line,) = [line for line in listing.splitlines() if line.startswith("leg_counting ")]
    assert line.endswith(" 0.00")
    assert max(map(len, listing.splitlines())) <= 80
    logic = json.loads(rg_env("tasks", "--category", "logic", "--sort", "constant", "--json")[1])
    assert {each["category"] for each in logic} == {"logic"}
    assert [each["constant"] for each in logic] == sorted(each["constant"] for each in logic)
    assert len(logic) == sum(each["category"] == "logic" for each in records)


def test_without_a_command_help_and_version_are_printed(rg_env: Run) -> None:
    code, printed, _ = rg_env()
    assert code == 0
    assert printed.startswith("usage: rg-env ")
    assert "\nexamples:\n  rg-env train configs/train/tiny.yaml\n" in printed
    assert rg_env("--version")[:2] == (0, f"rg-env {rg_env_package.__version__}\n")
    assert "\nexamples:\n  rg-env launch configs/" in rg_env("launch", "--help")[1]


@pytest.mark.parametrize(
    ("arguments", "name", "expected"),
    [
        ("eval --tasks gcd,lcm chain_sum", "tasks", ["gcd", "lcm", "chain_sum"]),
        ("eval --models tiny org/model", "models", ["tiny", "org/model"]),
        ("eval --gpus 0,2", "serving.gpus", [0, 2]),
        ("launch x.yaml --gpus 1,GPU-a --vllm-gpus 0", "gpus", ("1", "GPU-a")),
        ("probe --model tiny --tasks gcd, lcm --levels 0 2", "tasks", ["gcd", "lcm"]),
        ("probe --model tiny --tasks gcd --levels 0 2", "levels", [0, 2]),
    ],
)
def test_names_are_separated_by_spaces_or_commas(arguments: str, name: str, expected: Any) -> None:
    parser, _ = make_parser()
    assert vars(parser.parse_args(arguments.split()))[name] == expected


def test_tasks_shows_one_at_a_level(rg_env: Run) -> None:
    """The output has the task's options, levels and figures, and examples with their answers."""
    _, plain, _ = rg_env("tasks", "leg_counting")
    assert "max_animals: 10" in plain
    assert "\n  grader     arithmetic.leg_counting\n  gold       300/300    gold answers that score 1.0\n" in plain
    assert max(map(len, plain.splitlines())) <= 80
    code, harder, _ = rg_env("tasks", "leg_counting", "--level", "3", "--show", "2")
    assert code == 0
    assert "max_animals: 10\n" not in harder
    assert harder.count("How many legs are there in total") + harder.count("how many legs are there in total") >= 2
    assert harder.count("\nanswer: ") == 2


def test_the_audit_is_shown(rg_env: Run) -> None:
    """The audit covers all tasks or the named ones, and lists tasks that a constant reply answers."""
    code, table, _ = rg_env("tasks", "--audit")
    assert code == 0
    assert "\n105 tasks: " in table
    assert "syllogism 0.5" in table.splitlines()[-1]
    code, one, _ = rg_env("tasks", "chain_sum", "gcd", "--audit")
    assert code == 0
    assert [line.split()[0] for line in one.splitlines() if line[:1].isalpha()] == ["task", "chain_sum", "gcd"]
    assert "\n2 tasks: 600 of 600 gold answers score 1.0" in one


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tasks", "leg_countin"], "unknown task 'leg_countin': did you mean 'leg_counting'"),
        (["tasks", "leg_counting", "gcd"], "expected one task, got 2"),
        (["tasks", "--show", "2"], "require a task name"),
        (["tasks", "gcd", "--json"], "--json is for the list of all tasks, without NAME and --audit"),
        (["tasks", "--audit", "--json"], "--json is for the list of all tasks, without NAME and --audit"),
        (["tasks", "--category", "logics"], "unknown category 'logics': did you mean 'logic'"),
        (["report", "RUN/metrics.jsonl"], "is not a results file from rg-env eval (results_*.json); pass the run's"),
        (["plot", "SWEEP"], "SWEEP is a sweep: use `rg-env compare SWEEP`, or pass the folders of its runs"),
        (["push", "SWEEP", "--repo-id", "a/b", "--dry-run"], "SWEEP is not a complete checkpoint; a checkpoint is a"),
        (["train", TINY_RUN, "--gpus", "4"], "no option '--gpus': `rg-env train --help` lists the options"),
        (["slurm", TINY_RUN, "--gpus", "1", "--time", "5", "--nnodes", "2"], "did you mean --nodes?"),
        (["train", TINY_RUN, "training.max_tokens=600", "output.dir=x"], "max_tokens=600 does not fit"),
        ([*SHORTEST_PATHS, "-n", "3", "--max-tokens", "8"], "remove the task, or choose an easier level or another"),
        (["tran"], "unknown command 'tran': did you mean 'train'?"),
        (["sweep", TINY_RUN], "unknown command 'sweep': use `rg-env train CONFIG --sweep KEY=VALUE,VALUE`"),
        (["train", "legs"], "did you mean configs/train/legs.yaml?"),
        (["train", TINY_RUN, "lr=1e-6"], "lr = 1e-06 @ command line: use training.learning_rate"),
        (["train", TINY_RUN, "--sweep", "seed=[0,1]"], "--sweep 'seed=[0,1]': leave out the brackets"),
        (["train", TINY_RUN, "--sweep", "seed=0,", "1"], "section.key=value,value, without spaces"),
        (["compare", "nowhere"], "there is no folder nowhere: pass the output.dir of a sweep"),
        (["train", TINY_RUN, "--learning_rate=1e-6"], "to set this config key, write training.learning_rate=1e-6"),
        (["train", "--config", TINY_RUN], "has no option '--config': pass the path alone, as in rg-env train CONFIG"),
        (["push", "--checkpoint_dir", "x", "--repo-id", "a/b"], "pass the path alone, as in rg-env push CHECKPOINT"),
        (["eval", "--models", "tiny", "--gpus", "a"], "argument --gpus: 'a' must be GPU numbers, such as 0 or 0,1"),
        (["eval", "--model", "tiny", "--tasks", "gcd", "--output", "x"], "'--output': did you mean --output-dir?"),
        (["probe", "--model", "tiny", "--tasks", ","], "expected at least one name"),
        (["train", TINY_RUN, "--resume", "seed=1"], "argument --resume: seed=1 is an override, not a path: write the"),
        (["train", TINY_RUN, "--checkpoint", "output.dir=x"], "output.dir=x is an override, not a path"),
        (["train"], "rg-env train: the following arguments are required: CONFIG; see `rg-env train --help`"),
        (["train", TINY_RUN, "--training.max_steps=5"], "to set this config key, write training.max_steps=5"),
        (["train", TINY_RUN, "--lr", "1e-4"], "to set this config key, write training.learning_rate=VALUE"),
        (["train", TINY_RUN, "--seed", "1"], "to set this config key, write seed=VALUE"),
        (["train", TINY_RUN, "--multirun", "seed=0,1"], "use --sweep KEY=VALUE,VALUE"),
        (["train", TINY_RUN, TINY_RUN], "is a second config: pass one config, which can name others under `extends`"),
        (["train", TINY_RUN, "--resume"], "--resume needs a value: --resume auto|PATH"),
        (["train", TINY_RUN, "--dry-run=true"], "--dry-run takes no value"),
        (["launch", TINY_RUN, "--port"], "--port needs a value: --port PORT"),
        (["launch", "--accelerate-config", "zero3.yaml"], "the following arguments are required: CONFIG"),
        (["train", "output.dir=outputs/x", TINY_RUN], "the config comes first, then the overrides"),
        (["train", "--sweep", "seed=0,1", TINY_RUN], "tiny.yaml directly after 'rg-env train'"),
        (["train", TINY_RUN, "--sweep", "seed=0,1", "seed=2"], "seed is both swept and overridden"),
        (["train", TINY_RUN, "--sweep", "seed=0,1", "seed=2,3"], "seed is swept twice: list all its values at once"),
        (["train", TINY_RUN, "data=legs.csv", "tasks=null", "prompt.few_shot=2"], "write the examples as messages"),
        (["train", TINY_RUN, "engine.host=http://127.0.0.1"], "must be a name or an address, without http://"),
        (["train", TINY_RUN, "rewards.bonus=1"], "decorate your own with @reward (in a config, list its file under"),
        (["train", TINY_RUN, "rewards.format=low"], "must be a number, the reward's weight, or a mapping such as"),
        (["tasks", "leg_counting", "--show", "two"], "'two' is not a whole number"),
        (["eval", "-n", "0"], "argument -n/--num-examples/--limit: 0 is less than 1; see `rg-env eval --help`"),
    ],
)
def test_mistakes_exit_with_code_2(rg_env: Run, arguments: list[str], words: str, tmp_path: Path) -> None:
    """The reason is printed in one line."""
    for file in ("RUN/metrics.jsonl", "SWEEP/sweep.yaml", "configs/train/legs.yaml", "legs.csv"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("{}")
    with contextlib.chdir(tmp_path):
        code, _, errors = rg_env(*arguments)
    assert (code, errors.count("\n")) == (2, 1)
    assert words in errors


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", ""), ("WORLD_SIZE", "0"), ("LOCAL_RANK", "b")])
@pytest.mark.parametrize("options", [[], ["--sweep", "seed=0,1"]], ids=str)
def test_malformed_launcher_variables_are_reported_on_one_line(
    error_of: Any, environ: Callable[..., None], tmp_path: Path, name: str, value: str, options: list[str]
) -> None:
    """The error is reported before anything is written."""
    environ(**{name: value})
    with contextlib.chdir(tmp_path):
        error = error_of("train", TINY_RUN, *options)
    assert error.startswith(f"error: environment variable {name}={value!r}: must be a whole number of at least ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["tasks"],
        ["tasks", "--json"],
        ["train", TINY_RUN, "--dry-run", "--sweep", "seed=0,1"],
        ["eval", "--models", "tiny", "--tasks", "leg_counting", "--dry-run"],
        ["slurm", TINY_RUN, "engine.kind=vllm", "--gpus", "5", "--time", "60", "--dry-run"],
        ["launch", TINY_RUN, "evaluation=null", "--dry-run"],
    ],
    ids=" ".join,
)
def test_help_and_plans_import_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    """These commands are often run on login nodes, and should take only a few tenths of a second."""
    (tmp_path / ".venv/bin").mkdir(parents=True)  # rg-env slurm requires a virtual environment
    (tmp_path / ".venv/bin/activate").touch()
    code = f"""
import contextlib, sys
from rg_env.cli.main import run
with contextlib.suppress(SystemExit):
    run({arguments!r})
heavy = {{"torch", "transformers", "numpy", "psutil", "httpx", "verifiers", "reasoning_gym", "matplotlib", "rich"}}
heavy = heavy - {{"httpx", "rich"}} | {{"openai", "scipy"}} if {arguments[0]!r} == "eval" else heavy
heavy |= {{"pydantic"}} if "--help" in {arguments!r} else set()
print(sorted(heavy & set(sys.modules)))
"""
    done = run_code(code, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_until_the_first_answer_only_what_is_needed_is_imported(tmp_path: Path) -> None:
    """Plots, trackers, sharding and data sets take seconds to import, and most runs need them later or never."""
    code = f"""
import contextlib, sys
from rg_env.cli.main import run
from rg_env.errors import EngineError, RGEnvError
from rg_env.inference.embedded.engine import EmbeddedEngine
heavy = {{"matplotlib", "deepspeed", "datasets", "verifiers", "openai", "reasoning_gym"}}
heavy |= {{"tensorboard", "wandb", "trackio"}}
def generate(*arguments):
    print("imported:", sorted(heavy & set(sys.modules)))
    raise EngineError
EmbeddedEngine.generate = generate
with contextlib.suppress(RGEnvError):
    run({["eval", "--models", "tiny", "--tasks", "chain_sum", "--max-tokens", "4", "--output-dir", "e"]!r})
heavy |= {{"scipy.stats"}} - set(sys.modules)  # transformers imports it if scikit-learn is installed
heavy -= {{"deepspeed"}}  # transformers imports it when it saves a model, which the trainer tries
with contextlib.suppress(RGEnvError):
    run({["train", TINY_RUN, "output.dir=t"]!r})
"""
    done = run_code(code, cwd=tmp_path)
    found = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert found == ["imported: []"] * 2


def test_on_windows_one_line_names_wsl() -> None:
    """The error is not preceded by a failed import of a POSIX module, such as fcntl."""
    code = "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; from rg_env.cli.main import main; main()"
    done = run_code(code, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: rg-env requires Linux or macOS; on Windows, install it in WSL 2\n"


def test_commands_in_messages_can_be_entered_as_they_are(tmp_path: Path) -> None:
    """Commands in messages include the program's path if the program is not on the PATH."""
    run = write_run(tmp_path / "run")
    shutil.copytree(POLICY_DIR, run / "checkpoint-4")
    environment = {**os.environ, "HF_TOKEN": "hf_x", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    for path, program in ((str(Path(sys.executable).parent), "rg-env"), ("/usr/bin:/bin", shlex.quote(PROGRAM))):
        command = [sys.executable, "-m", "rg_env.cli.main", "push", str(run), "--repo-id", "me/legs"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**environment, "PATH": path})
        assert done.returncode == 1
        assert done.stderr.endswith(f"the same command resumes the upload: {program} push {run} --repo-id me/legs\n")


@pytest.mark.parametrize("command", ["doctor", "eval"])
def test_a_configs_path_may_contain_an_equals_sign(command: str) -> None:
    """Without a config, the first word is an override."""
    parser, _ = make_parser()
    for words, config in ((["runs/lr=1e-5.yaml", "seed=1"], "runs/lr=1e-5.yaml"), (["seed=1"], None)):
        options, unknown = parser.parse_known_args([command, *words])
        assert (options.config, options.overrides, unknown) == (config, ["seed=1"], [])
