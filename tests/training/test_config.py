"""The schema of training runs: accepted values, and the one-line error for each mistake."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import reference_docs
from data_files import data
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.config.files import SHORT_FORMS
from rg_env.core.config.parsing import Section
from rg_env.core.config.yaml12 import to_yaml
from rg_env.errors import ConfigError, InputError
from rg_env.training.config.grpo import OTHER_TRAINERS, GRPOConfig, batch_problems
from rg_env.training.config.load import load_train_config
from rg_env.training.config.plan import describe
from rg_env.training.config.schema import TrainConfig

CASES = data("train_configs")
GRPO_NAMES = OTHER_TRAINERS["training"]
BASE = """
model: {name: tiny}
tasks: {spell_backward: {}, chain_sum: {weight: 2}}
"""


@pytest.fixture
def base(here: Path) -> Path:
    """A config for a small run, in the working directory."""
    (here / "run.yaml").write_text(BASE)
    return Path("run.yaml")


@pytest.mark.parametrize(("overrides", "words"), CASES["mistakes"], ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_line_with_path_and_remedy(base: Path, overrides: str | list[str], words: str) -> None:
    overrides = [overrides] if isinstance(overrides, str) else overrides
    with pytest.raises(ConfigError) as caught:
        load_train_config(base, overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert words in f"{text}\n"
    assert any(text.startswith(override.partition("=")[0].split(".")[0]) for override in overrides)


def test_a_config_of_the_papers_trainer_is_one_line(base: Path) -> None:
    """The error names the folder of our configs for the paper's runs."""
    base.write_text("reasoning_gym: {dataset_size: 20000}\ntrainer: {n_gpus_per_node: 4}\n")
    with pytest.raises(ConfigError, match=r"own trainer: see configs/train/paper for the paper's runs$"):
        load_train_config(base)


def test_all_invalid_options_of_a_task_are_reported_with_their_lines(base: Path) -> None:
    """Errors in a file give the line of each key or, for the short form of a list, the line of the list."""
    base.write_text(
        "model: {name: tiny}\n"
        "tasks:\n"
        "  maze:\n"
        "    config:\n"
        "      min_grid_sise: 3\n"
        "      max_grid_size: 10\n"
        "      min_dists: 10\n"
        "    levels:\n"
        "      grid: 1\n"
        "    level: 99\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_train_config(base)
    lines = str(caught.value).splitlines()[1:]
    assert sorted(line.strip().partition(": ")[0] for line in lines) == [
        "tasks.maze.config.min_dists = 10 @ run.yaml:7",
        "tasks.maze.config.min_grid_sise = 3 @ run.yaml:5",
        "tasks.maze.level = 99 @ run.yaml:10",
        "tasks.maze.levels.grid = 1 @ run.yaml:9",
    ]
    base.write_text("model: {name: tiny}\ntasks: [{name: maze, config: {min_grid_sise: 3}}]\n")
    with pytest.raises(
        ConfigError, match=r"@ run\.yaml:2: maze\.config\.min_grid_sise unknown option 'min_grid_sise' of task 'maze'"
    ):
        load_train_config(base)


def test_a_batch_is_checked_for_the_processes_that_share_it(base: Path) -> None:
    words = r"rollouts_per_step = 128 .*: 128 rollouts are not divisible by 3 processes; try 120 or 144"
    with pytest.raises(ConfigError, match=words):
        load_train_config(base, ["training.rollouts_per_step=128"], processes=3)


@settings(max_examples=200, deadline=None)
@given(rollouts=st.integers(1, 200), group=st.integers(2, 9), micro=st.integers(1, 16), processes=st.integers(1, 6))
def test_an_invalid_batch_size_is_refused_with_the_nearest_valid_ones(
    rollouts: int, group: int, micro: int, processes: int
) -> None:
    """A suggested batch needs no other change, unless no batch within a factor of 2 qualifies."""
    args = GRPOConfig(rollouts_per_step=rollouts, num_generations=group, per_device_train_batch_size=micro)

    def fits(**changes: int) -> bool:
        return not list(batch_problems(args.model_copy(update=changes), processes))

    share = rollouts // processes
    if rollouts % group == 0 and rollouts % processes == 0 and (share < micro or share % micro == 0):
        assert args.micro_batch(processes) == min(micro, share)
        assert args.accumulation(processes) * args.micro_batch(processes) * processes == rollouts
        return
    with pytest.raises(InputError) as caught:
        args.accumulation(processes)
    name, _, message = str(caught.value).partition(": ")
    suggested = [int(value) for value in re.findall(r"\d+", message.rpartition("; try ")[2])]
    if name == "rollouts_per_step":
        near = [size for size in range(-(-rollouts // 2), 2 * rollouts + 1) if fits(rollouts_per_step=size)]
        below, above = [size for size in near if size < rollouts], [size for size in near if size > rollouts]
        if near:
            assert suggested == [*below[-1:], *above[:1]]
        assert all(fits(rollouts_per_step=size, per_device_train_batch_size=1) for size in suggested)
    else:
        assert all(fits(per_device_train_batch_size=size) for size in suggested)
    assert suggested


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lerning_rate": 1e-5}, "lerning_rate.*learning_rate"),
        ({"loss_type": "ppo"}, "loss_type.*'ppo'.*dapo.*bnpo"),
        ({"kl_reference": "previous"}, "kl_reference='previous': there is no KL term because beta is 0"),
        ({"max_prompt_length": 0}, "max_prompt_length"),  # 0 does not mean "no limit"
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"temperature": -1, "max_steps": 0, "logging_steps": 10}, "max_steps.*temperature.*logging_steps"),
        *(({name: 1}, f"{name}=1: {re.escape(text)}") for name, text in GRPO_NAMES.items() if name != "max_new_tokens"),
    ],
    ids=str,
)
def test_in_python_all_mistakes_are_one_line(fields: dict[str, Any], message: str) -> None:
    """Names from other trainers are rejected, and the error gives their replacement."""
    with pytest.raises(InputError, match=message) as caught:
        GRPOConfig(**fields)
    assert "\n" not in str(caught.value)
    assert not GRPO_NAMES.keys() & GRPOConfig.model_fields.keys()


def test_replacements_for_names_of_other_trainers_exist() -> None:
    parts_of = {name: field.annotation for name, field in TrainConfig.model_fields.items()}
    fields = {field for section in parts_of.values() for field in getattr(section, "model_fields", {})}
    named = {name for text in GRPO_NAMES.values() for name in re.findall(r"[a-z_]*_[a-z_]+", text)}
    assert named <= {*fields, *GRPOConfig.model_fields, *parts_of, "vllm", "mixed_precision", "num_return_sequences"}


def test_advice_names_a_key_with_its_section(base: Path) -> None:
    """Keys at the top level, which may exist in other sections too, are named as they are."""
    with pytest.raises(ConfigError) as caught:
        load_train_config(base, ["data.task_name=maze", "data.seed=1", "training.hub_model_id=me/x"])
    advice = [
        "data.task_name = .*: use tasks: ",
        "data.seed = .*: use seed or splits.seed",
        "training.*: use hub.repo_id",
    ]
    assert [each for each in advice if not re.search(each, str(caught.value))] == [], str(caught.value)


def test_fields_that_other_sections_set_are_for_python_only(base: Path) -> None:
    """In Python, `GRPOConfig` has fields such as `seed` that a config sets in other sections. Resolved configs omit
    them from `training`."""
    config = load_train_config(base, ["seed=3", "output.save_every=5", "output.save_total_limit=2", "output.dir=x"])
    assert not {"seed", "save_steps", "save_total_limit", "output_dir"} & config.resolved()["training"].keys()
    args = config.grpo_config(Path("x"))
    assert (args.seed, args.save_steps, args.save_total_limit, args.output_dir) == (3, 5, 2, "x")
    assert GRPOConfig(seed=3, save_steps=5, save_total_limit=2, output_dir="x") == args
    assert GRPOConfig("x", seed=3, save_steps=5, save_total_limit=2) == args  # by position, as in TRL


def test_mistakes_of_all_kinds_are_reported_together(base: Path) -> None:
    """Errors in types, keys and names are reported at once, and so are incompatible values and unknown names."""
    names = ["tasks.mase={}", "rewards.lenth=1"]
    for mistakes in (["seed=x", "training.output_dir=x", "model.nam=1", *names], ["training.warmup_steps=500", *names]):
        with pytest.raises(ConfigError) as caught:
            load_train_config(base, mistakes)
        assert len(str(caught.value).splitlines()) == 1 + len(mistakes)


def test_the_default_warmup_is_capped_in_a_short_run(base: Path) -> None:
    """A short run needs no other settings, but a warmup that the user has set is still checked."""
    assert load_train_config(base, ["training.max_steps=3"]).training.warmup_steps == 3
    assert (GRPOConfig(max_steps=3).warmup_steps, GRPOConfig(max_steps=30).warmup_steps) == (3, 10)
    assert GRPOConfig(max_steps=3, warmup_steps=0).warmup_steps == 0
    epochs = GRPOConfig(num_train_epochs=0.5, rollouts_per_step=16, num_generations=8)
    assert [epochs.for_rows(rows).warmup_steps for rows in (8, 400)] == [2, 10]
    with pytest.raises(ConfigError, match=r"warmup_steps = 4 .*exceeds the run's 3 steps"):
        load_train_config(base, ["training.max_steps=3", "training.warmup_steps=4"])


@pytest.mark.parametrize(("short", "whole"), CASES["short_forms"])
def test_short_forms(base: Path, short: str, whole: str) -> None:
    assert load_train_config(base, [short]) == load_train_config(base, [whole])


def test_an_invalid_batch_size_is_reported_with_other_mistakes(base: Path) -> None:
    """The batch is not checked if a value that it depends on is itself invalid."""
    with pytest.raises(ConfigError, match=r"2 mistakes(.|\n)*7 rollouts are not divisible by num_generations=8"):
        load_train_config(base, ["training.rollouts_per_step=7", "training.learning_rate=x"])
    with pytest.raises(ConfigError, match=r"^training.num_generations = 'x'[^\n]*$"):
        load_train_config(base, ["training.rollouts_per_step=7", "training.num_generations=x"])


def test_a_section_given_as_plain_text_is_changed_by_key(base: Path) -> None:
    engine = load_train_config(base, ["engine=vllm", "engine.port=8001"]).engine
    assert (engine.kind, engine.port) == ("vllm", 8001)
    named = load_train_config(base, ["tasks=null", "data=me/d", "data.name=word problems"])
    assert (named.data and named.data.task_name, named.trained_on) == ("word_problems", ["word_problems"])
    config = load_train_config(base, ["tasks=null", "data=me/d", "data.question_column=q", "data.path=me/e"])
    assert (config.data and (config.data.path, config.data.question_column), config.trained_on) == (
        ("me/e", "q"),
        ["e"],
    )
    with pytest.raises(InputError, match=r"data\.file = 'e.csv' @ command line: use path"):
        load_train_config(base, ["tasks=null", "data=me/d", "data.file=e.csv"])
    sections = {name: field.annotation for name, field in TrainConfig.model_fields.items()}
    shorts = {name: short for name, kind in sections.items() if (short := _short(kind))}
    assert shorts == SHORT_FORMS


def _short(kind: Any) -> str:
    """Return the key that plain text sets in a section of this type."""
    return next((short for each in (kind, *get_args(kind)) if (short := getattr(each, "short", ""))), "")


def test_the_resolved_config_loads_to_an_equal_config(base: Path) -> None:
    """A run can be repeated from its own config.yaml, because the resolved config loads to an equal config."""
    overrides = [
        "prompt.system_prompt='Ünïcode \x85 \"quotes\" # no comment'", "training.learning_rate=1e-6", "lora.r=4",
        "curriculum={tasks: {spell_backward: {}}, schedule: {0: 0, 10: 1}}",
        "evaluation.tasks={maze: {level: 1}, words: {task: spell_backward, num_examples: 7}}",
    ]  # fmt: skip
    config = load_train_config(base, overrides)
    Path("again.yaml").write_text(to_yaml(config.resolved()), encoding="utf-8")
    assert load_train_config("again.yaml") == config


@pytest.mark.slow
def test_a_plan_imports_nothing_heavy(base: Path) -> None:
    """A dry run prints its plan in less than a second. Only the checks of the model after it import torch."""
    code = (
        "import sys; from rg_env.cli import main, train; train.print_model_checks = lambda config: None; "
        "main.run(['train', 'run.yaml', '--dry-run']); "
        "print({'torch', 'reasoning_gym', 'verifiers', 'transformers', 'datasets', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert "#   steps       200 of 128 rollouts: 16 prompts x 8 (1 process x 16 micro-batches of 8)\n" in done.stdout


@pytest.mark.parametrize("case", CASES["plans"], ids=lambda case: str(case["overrides"])[:60])
def test_the_plan_describes_the_run(base: Path, case: dict[str, list[str]]) -> None:
    text = describe(load_train_config(base, case["overrides"]))
    for line in case["lines"]:
        assert f"\n#   {line}\n" in f"{text}\n"


def test_a_run_begins_with_its_plan(
    base: Path, rg_env: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of several processes prints the plan before anything is loaded."""
    base.write_text(base.read_text().replace("tiny", "nowhere/at-all"))
    monkeypatch.setattr("rg_env.inference.models.hub_answers", lambda: False)
    for rank, lines in (("0", 9), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        code, printed, error = rg_env("train", str(base), f"output.dir=run{rank}")
        assert code == 2
        assert "cannot load the model" in error
        assert len(printed.splitlines()) == lines
        if lines:
            assert printed.startswith("model       nowhere/at-all, all weights; generation in the training process\n")
            assert "output      run0, " in printed
            assert printed.endswith("\nloading nowhere/at-all ...\n")


def parts(annotation: Any) -> list[type[Section]]:
    """Return the schemas named in an annotation."""
    named = [annotation, *getattr(annotation, "__args__", ())]
    return [each for each in named if isinstance(each, type) and issubclass(each, Section)]


def sections(schema: type[Section]) -> list[type[Section]]:
    """Return a schema and all schemas in it."""
    fields = schema.model_fields.values()
    return [schema, *(found for field in fields for part in parts(field.annotation) for found in sections(part))]


@pytest.mark.parametrize("schema", dict.fromkeys(sections(TrainConfig)), ids=lambda schema: schema.__name__)
def test_every_section_and_field_has_a_description(schema: Any) -> None:
    assert schema.__doc__
    described = reference_docs.descriptions(schema)
    for name, field in schema.model_fields.items():
        assert described.get(name) or parts(field.annotation), name
