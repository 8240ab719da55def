"""The schema of training runs: accepted values, and the one-line error for each mistake."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.core.config.files import SHORT_FORMS
from rg_env.core.config.parsing import Section
from rg_env.core.config.yaml12 import to_yaml
from rg_env.errors import ConfigError, InputError
from rg_env.training.config.grpo import OTHER_TRAINERS, GRPOConfig, batch_problems
from rg_env.training.config.load import load_train_config
from rg_env.training.config.plan import describe, without_effect
from rg_env.training.config.schema import TrainConfig

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


UPLOADED = ["hub.enabled=true", "hub.repo_id=me/legs"]
MISTAKES = [
    # keys
    ("training.max_step=3", "unknown key 'max_step': did you mean 'max_steps'?"),
    ("training.steps=3", "use max_steps"),
    ("tasks.leg_counting.max_animals=20", "is an option of the task; use config: {max_animals: VALUE}"),
    ("group=3", "unknown section 'group': available: curriculum, data, engine,"),
    ("_base_=base.yaml", "use extends"),
    ("hf_upload.organization=me", "put it into repo_id: ORGANIZATION/NAME (in hub)"),
    ("hf_upload=true", "use hub"),
    ("max_steps=3", "unknown key 'max_steps': did you mean training.max_steps?"),
    ("training.lr=1e-5", "use learning_rate"),
    # keys for which a similar name of ours would be the wrong suggestion
    ("lora_r=1", "use lora.r"),
    # types
    ("training.kl_reference=previous", "training.kl_reference = 'previous' @ command line: there is no KL term"),
    # names of other trainers and of earlier releases, and keys of other sections
    ("training.gradient_accumulation_steps=4", "set rollouts_per_step"),
    ("training.output_dir=x", "use output.dir"),
    ("training.seed=1", "did you mean seed (at the top level) or splits.seed?"),
    ("training.rollouts_as_steps=true", "steps are optimizer steps"),
    (
        ["training.filter_groups=true", "curriculum.tasks=[chain_sum]"],
        "samples prompts other than the curriculum's: use only filter_groups or only curriculum",
    ),
    ("tasks=[a, a]", "'a' appears twice"),
    ("evaluation.tasks=[maze, maze]", "'maze' appears twice: give the second entry a label"),
    ("logging.report_to=wanddb", "must be one of 'tensorboard', 'wandb' or 'trackio'"),
    ("engine=vlm", "engine = 'vlm' @ command line: kind must be one of 'embedded' or 'vllm'"),
    ("data=me/problems", "cannot be used with tasks: remove one of the two, for example with tasks=null"),
    (["tasks=null", "data=me/d", "splits.manifest=m.json"], "cannot be used with data, which provides its own"),
    # ranges
    ("seed=4294967296", "must be below 4294967296"),
    ("training.learning_rate=0", "must be above 0"),
    ("training.max_steps=99999999999999999999", "must be at most 2147483647"),
    ("rewards.format=1e308", "must be at most 1e+100"),
    ("rewards.format=true", "is a section with its own keys, such as"),
    ('output.dir="a\\0b"', "contains a null character"),
    # names of tasks, rewards, models and monitors
    ("tasks.chain_sums.weight=1", "unknown task 'chain_sums': did you mean 'chain_sum'"),
    ("tasks.game_of_24={}", "use 'puzzle24'"),
    ("evaluation.tasks.spell_backward_4={}", "unknown task 'spell_backward_4': did you mean 'spell_backward'"),
    ("evaluation.tasks.easy={task: maze, config: {min_grid: 3}}", "unknown option 'min_grid' of task 'maze'"),
    ("rewards.correctnes=1", "unknown reward 'correctnes': did you mean 'correctness'"),
    ("model.name=./nowhere", "is not an existing folder"),
    ("monitors.stop_on=[reward_hack]", "unknown monitor 'reward_hack': did you mean 'reward_hacking'"),
    # combinations
    (["monitors.stop_on=[truncation]", "monitors.off=[all]"], "truncation is off: remove it from monitors.off"),
    ("evaluation.tasks.chain_sum={}", "is already evaluated as a training task"),
    ("evaluation.tasks.chain_sum.task=spell_backward", "is the name of a task: choose another label"),
    ("evaluation.tasks.held_out.task=maze", "is the name of a metric (eval/held_out)"),
    ("evaluation.tasks={a/b: {task: maze}}", "a label may contain only letters, digits, '_', '-' and '.'"),
    ("training.rollouts_per_step=60", "not divisible by num_generations=8; try 56 or 64"),
    (["training.rollouts_per_step=100", "training.per_device_train_batch_size=3"], "try 96 or 120"),
    ("training.per_device_train_batch_size=24", "does not divide each process's 128 rollouts per step; try 16"),
    ("splits.num_train_examples=1", "fewer than the 16 prompts in a step"),
    ("rewards={correctness: 0}", "all weights are 0"),
    ("tasks={}", "is empty: add at least one task, or use your own questions (data)"),
    ("training.warmup_steps=500", "exceeds the run's 200 steps"),
    ("training.epsilon_high=0.1", "training.epsilon_high = 0.1 @ command line: must be at least epsilon (0.2)"),
    ("training.optim=adamw_8bit", "needs bitsandbytes, which is not installed"),
    ("model.dtype=bfloat16", "without LoRA, small updates are rounded away"),
    ("engine.num_batches_ahead=1", "applies only to engine.kind: vllm"),
    (["engine.kind=vllm", "engine.importance_sampling_correction=true", "training.top_p=0.9"], "needs training.top_p"),
    (["evaluation.temperature=0", "evaluation.greedy=false", "evaluation.rollouts_per_example=4"], "all answers"),
    ("evaluation.temperature=0", "the sampled answer is already greedy"),
    (["splits.num_eval_examples=0", "evaluation.every=5"], "there is nothing to evaluate"),
    ("curriculum={tasks: {maze: {}}}", "is not a training task"),
    (["tasks=null", "curriculum.tasks=maze"], "is empty: add at least one task, or use your own questions (data)"),
    ("curriculum={tasks: {spell_backward: {attributes: [len]}}}", "unknown level attribute 'len' of task"),
    ("curriculum={tasks: {spell_backward: {start: 99}}}", "the highest level is"),
    ("curriculum={tasks: {spell_backward: {start: 2, highest: 1}}}", "is above highest (1)"),
    ("curriculum={tasks: {spell_backward: {}}, failure_threshold: 0.8}", "must be below success_threshold (0.7)"),
    ("curriculum={tasks: {spell_backward: {}}, schedule: {first: 1}}", "must map steps to levels"),
    ("curriculum={tasks: {spell_backward: {}}, schedule: {5: 0, 05: 1}}", "names a step twice"),
    (["curriculum={tasks: {spell_backward: {}}}", "tasks.spell_backward.level=1"], "set by the curriculum"),
    (["curriculum={tasks: {spell_backward: {}}}", "splits.manifest=m.json"], "cannot be used with a curriculum"),
    ("hub.enabled=true", "is required if hub.enabled is true: set it to the repository to upload to, as USER/NAME"),
    ("lora.dropout=0.05", "dropout is always off, so that log-probabilities in training and sampling match: remove it"),
    ("hub.repo_id=legs", "is not a repository name: use USER/NAME"),
    ([*UPLOADED, "hub.every=150"], "must be a multiple of output.save_every (100); try 200"),
    ([*UPLOADED, "hub.every=100", "output.save_every=0"], "there are no checkpoints to upload during training"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "words"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_line_with_path_and_remedy(base: Path, overrides: str | list[str], words: str) -> None:
    overrides = [overrides] if isinstance(overrides, str) else overrides
    with pytest.raises(ConfigError) as caught:
        load_train_config(base, overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert words in text
    assert any(text.startswith(override.partition("=")[0].split(".")[0]) for override in overrides)


@pytest.mark.parametrize(
    ("override", "end"),
    [
        ("model.model_name_or_path=x", "use model.name"),
        ("vllm_mode=colocate", "use engine.kind: vllm or embedded"),
        ("dataset_name=openai/gsm8k", "use data.path for your own questions, or tasks"),
        ("curriculum={tasks: [chain_sum], last_k: 5}", "use window"),
        ("lr=1", "use learning_rate (in training)"),
        ("trainer.n_gpus_per_node=2", "use the option --gpus of `rg-env launch` or `rg-env slurm`"),
        ("trainer.balance_batch=true", "verl's sections correspond to training, output and logging here"),
        ("actor_rollout_ref.rollout.n=4", "use num_generations (in training)"),
        ("hf_upload.enabled=true", "unknown key 'enabled': did you mean hub.enabled?"),
        ("reasoning_gym.datasets.ab.weight=2", "use tasks, and splits.num_train_examples"),
    ],
)
def test_a_hint_names_the_section_where_it_is_needed(base: Path, override: str, end: str) -> None:
    """A hint adds the section of the new key, unless it has the whole path or the key is already in that section."""
    with pytest.raises(ConfigError) as caught:
        load_train_config(base, [override])
    assert str(caught.value).endswith(f" @ command line: {end}")


def test_a_config_of_the_papers_trainer_is_one_line(tmp_path: Path) -> None:
    """The error names our config that corresponds to the file."""
    file = tmp_path / "inter_generalisation" / "logic_qwen_3b.yaml"
    file.parent.mkdir()
    file.write_text("reasoning_gym: {dataset_size: 20000}\ntrainer: {n_gpus_per_node: 4}\n")
    with pytest.raises(ConfigError, match=r"own trainer: .* corresponds to configs/train/paper/inter_logic.yaml here$"):
        load_train_config(file)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("tasks.maze.config.min_grid_sise", 3, "did you mean 'min_grid_size'"),
        ("tasks.maze.config.seed", 3, "'seed' is not a task option"),
        ("tasks.maze.level", 99, "level must be a whole number from 0 to"),
        ("tasks.spell_backward.levels.word_lem", 1, "did you mean 'word_len'"),
        ("tasks.spell_backward.levels.word_len", 99, "from 0 to"),
        ("evaluation.tasks.chain_sum.config.max_term", 3, "'max_terms'"),
        ("rewards.length.options.max_tokens", -1, "must be a number of at least 0"),
    ],
)
def test_errors_in_options_name_the_path_of_the_option(base: Path, path: str, value: int, words: str) -> None:
    """Errors are not reported at the task or reward to which the options belong."""
    with pytest.raises(ConfigError) as caught:
        load_train_config(base, ["tasks={maze: {}, spell_backward: {}}", f"{path}={value}"])
    assert str(caught.value).startswith(f"{path} = {value} @ command line: ")
    assert words in str(caught.value)


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
        ({"loss_type": "ppo"}, "loss_type.*'ppo'.*bnpo.*dapo"),
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
    assert named <= {*fields, *GRPOConfig.model_fields, *parts_of, "vllm", "mixed_precision"}


def test_fields_that_other_sections_set_are_for_python_only(base: Path) -> None:
    """In Python, `GRPOConfig` has fields such as `seed` that a config sets in other sections. Resolved configs omit
    them from `training`."""
    config = load_train_config(base, ["seed=3", "output.save_every=5", "output.save_total_limit=2", "output.dir=x"])
    assert not {"seed", "save_steps", "save_total_limit", "output_dir"} & config.resolved()["training"].keys()
    args = config.grpo_config(Path("x"))
    assert (args.seed, args.save_steps, args.save_total_limit, args.output_dir) == (3, 5, 2, "x")
    assert GRPOConfig(seed=3, save_steps=5, save_total_limit=2, output_dir="x") == args


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


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("tasks=chain_sum", "tasks={chain_sum: {}}"),
        ("tasks=[maze, {name: chain_sum, weight: 3}]", "tasks={maze: {}, chain_sum: {weight: 3}}"),
        ("rewards={correctness: 2}", "rewards={correctness: {weight: 2}}"),
        (
            "evaluation.tasks=[maze, {name: easy, task: maze, num_examples: 3}]",
            "evaluation.tasks={maze: {}, easy: {task: maze, num_examples: 3}}",
        ),
        ("model=tiny", "model={name: tiny}"),
        ("engine=vllm", "engine.kind=vllm"),
        ("output=here", "output.dir=here"),
        ("logging.report_to=tensorboard", "logging.report_to=[tensorboard]"),
        ("logging.report_to=none", "logging.report_to=[]"),
    ],
)
def test_short_forms(base: Path, short: str, whole: str) -> None:
    """Plain text is short for a section or a list, a list of names or mappings for a mapping, and a number for a
    weight."""
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


def test_a_dry_run_imports_nothing_heavy(base: Path) -> None:
    """Without heavy imports, a dry run takes less than a second."""
    code = (
        "import sys; from rg_env.cli.main import run; run(['train', 'run.yaml', '--dry-run']); "
        "print({'torch', 'reasoning_gym', 'verifiers', 'transformers', 'datasets', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert "#   steps       200 of 128 rollouts: 16 prompts x 8 (1 process x 16 micro-batches of 8)\n" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        ([], ["questions   2000 to train on, 3200 prompts: 1.6 epochs",
              "output      a fresh folder under outputs/, a checkpoint every 100 steps and at the end"]),
        (["splits.num_train_examples=30"], ["questions   30 to train on, 3200 prompts: 200 epochs"]),
        (["curriculum={tasks: [spell_backward, chain_sum]}"],
         ["curriculum  spell_backward, chain_sum: a new question for each prompt, at its task's level"]),
        (["evaluation.every=200"],
         ["evaluation  200 questions, answers: 1 sampled and 1 greedy for each; before, after"]),
        (["output.save_every=200"], ["output      a fresh folder under outputs/, a checkpoint at the end"]),
        ([*UPLOADED, "hub.private=true", "hub.every=100", "hub.optimizer_state=full"],
         ["upload      me/legs on the Hugging Face Hub (private), every 100 steps and at the end, with the optimizer "
          "state"]),
        (["curriculum={tasks: {spell_backward: {}}}", "lora.r=4",
          "evaluation.tasks={maze: {}, words: {task: spell_backward, num_examples: 7}, lcm: {num_examples: 9}}"],
         ["model       tiny, LoRA of rank 4; generation in the training process",
          "tasks       spell_backward (33.4% of the prompts), chain_sum (1333)",
          "questions   1333 to train on, 3200 prompts: 1.6 epochs",
          "curriculum  spell_backward: a new question for each prompt, at its task's level",
          "held out    maze (50), lcm (9)",
          "labels      words: spell_backward (7)"]),
    ],
)  # fmt: skip
def test_the_plan_describes_the_run(base: Path, overrides: list[str], lines: list[str]) -> None:
    text = describe(load_train_config(base, overrides))
    for line in lines:
        assert f"\n#   {line}\n" in f"{text}\n"


VLLM, SCHEDULE = "engine.kind=vllm", "curriculum={tasks: {chain_sum: {}}, schedule: {0: 0, 9: 1}, step: 2}"
NEVER = ["evaluation.before=false", "evaluation.after=false", "evaluation.every=0"]
UNUSED: list[tuple[list[str], str, str, str]] = [
    # overrides, the keys among them without effect, the reason, and an override that gives the keys an effect
    (["engine.port=8001", "engine.host=h"], "engine.host, engine.port", "engine.kind: embedded", VLLM),
    (["training.epsilon=0.3"], "training.epsilon", "training.num_iterations: 1", "training.num_iterations=2"),
    (["training.off_policy_mask_threshold=0.1"], "training.off_policy_mask_threshold",
     "training.num_iterations: 1, engine.kind: embedded", "training.num_iterations=2"),
    ([*NEVER, "evaluation.temperature=0.5"], "evaluation.temperature",
     "evaluation.before: false, evaluation.after: false, evaluation.every: 0", "evaluation.after=true"),
    ([SCHEDULE], "curriculum.step", "curriculum.schedule", "curriculum.schedule=null"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "keys", "reason", "needed"), UNUSED, ids=[each[1] for each in UNUSED])
def test_a_key_without_effect_is_named_with_the_reason(
    base: Path, given: list[str], keys: str, reason: str, needed: str
) -> None:
    """The plan names the key, unless the config also has what the key needs."""
    config = load_train_config(base, given)
    assert without_effect(config) == f"without effect: {keys} ({reason})"
    assert describe(config).endswith(f"\n#   {without_effect(config)}")
    assert keys not in without_effect(load_train_config(base, [*given, needed]))


@pytest.mark.parametrize(
    "overrides",
    [
        ["engine.port=8000", "training.epsilon=0.2"],  # the defaults
        ["engine.generation_timeout=9"],  # also applies to the embedded engine
        ["training.lr_scheduler_type=constant", "training.warmup_steps=0"],  # the same as without these keys
        ["curriculum={tasks: [chain_sum], schedule: {0: 1}, window: 5}"],  # the window of the logged accuracy
    ],
    ids=str,
)
def test_keys_with_an_effect_are_not_reported(base: Path, overrides: list[str]) -> None:
    assert without_effect(load_train_config(base, overrides)) == ""


def test_a_run_begins_with_its_plan(base: Path) -> None:
    """The first of several processes prints the plan, with the keys that have no effect, before anything is loaded."""
    given = "engine: {port: 1}\ntraining: {max_steps: 40, num_train_epochs: 2}\n"
    base.write_text(f"{base.read_text().replace('tiny', 'nowhere/at-all')}{given}")
    for rank, lines in (("0", 10), ("1", 0)):
        command = [sys.executable, "-m", "rg_env.cli.main", "train", str(base), f"output.dir=run{rank}"]
        environment = {**os.environ, "RANK": rank, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 2
        assert "cannot load the model" in done.stderr
        assert len(done.stdout.splitlines()) == lines
        if lines:
            assert done.stdout.startswith(
                "model       nowhere/at-all, all weights; generation in the training process\n"
            )
            assert "output      run0, " in done.stdout
            unused = "engine.port (engine.kind: embedded); training.max_steps (training.num_train_epochs)"
            assert done.stdout.endswith(f"\nwithout effect: {unused}\nloading nowhere/at-all ...\n")


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
    for name, field in schema.model_fields.items():
        assert field.description or parts(field.annotation), name
