"""The schema of training runs: what it takes, and the one line that each mistake gets."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from config_docs import render, render_evaluation

from rg_env.core.config.parsing import Section
from rg_env.errors import ConfigError
from rg_env.training.config.convert import environment_arguments, grpo_config
from rg_env.training.config.dry_run import describe, resolved, resolved_yaml
from rg_env.training.config.grpo import OWNED_ELSEWHERE, GRPOConfig
from rg_env.training.config.load import load_train_config
from rg_env.training.config.schema import TrainConfig

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
BASE = """
model: {name: tiny}
tasks: {spell_backward: {}, chain_sum: {weight: 2}}
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small config in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    (tmp_path / "run.yaml").write_text(BASE)
    return Path("run.yaml")


UPLOADED = ["hub.enabled=true", "hub.repo_id=me/legs"]
MISTAKES = [
    # keys
    ("trainig.max_steps=3", "unknown section 'trainig': did you mean 'training'"),
    ("training.max_step=3", "unknown key 'max_step': did you mean 'max_steps'"),
    ("tasks.chain_sum.wieght=3", "unknown key 'wieght': did you mean 'weight'"),
    ("evaluation.tasks.maze.lvl=3", "unknown key 'lvl': did you mean 'level'"),
    ("evaluation.tasks.maze.weight=3", "unknown key 'weight'"),
    ("rewards.format.wen=correct", "unknown key 'wen': did you mean 'when'"),
    ("curriculum.tasks.chain_sum.begin=1", "unknown key 'begin'"),
    ("lora.rank=3", "unknown key 'rank'"),
    ("prompt.instruction=x", "unknown key 'instruction': there are: placement, preamble, system_prompt"),
    # types
    ("training.max_steps=3.5", "must be a whole number"),
    ("training.max_steps='3'", "must be a whole number"),
    ("training.learning_rate=fast", "must be a number"),
    ("training.shuffle_dataset=1", "must be true or false"),
    ("training.scale_rewards=true", "must be one of 'group', 'batch' or 'none'"),
    ("training.kl_reference=last", "must be one of 'initial' or 'previous'"),
    ("training.filter_groups_rounds=0", "must be at least 1"),
    ("training.off_policy_mask_threshold=0", "must be above 0"),
    ("training.kl_reference=previous", "training.kl_reference = 'previous' @ command line: beta is 0"),
    # names of other trainers and of earlier releases, and keys of other sections
    ("training.gradient_accumulation_steps=4", "set rollouts_per_step"),
    ("training.generation_batch_size=64", "it is called rollouts_per_step"),
    ("training.shuffle=true", "it is called shuffle_dataset"),
    ("training.num_batches_ahead=1", "engine.num_batches_ahead"),
    ("training.report_to=[wandb]", "logging.report_to"),
    ("training.max_seq_len=2048", "set those"),
    ("training.output_dir=x", "is set outside of training: output.dir"),
    ("training.save_steps=5", "is set outside of training: output.save_every"),
    ("training.save_total_limit=5", "is set outside of training: output.save_total_limit"),
    ("training.seed=0", "is set outside of training: seed"),
    (
        ["training.filter_groups=true", "curriculum.tasks=[chain_sum]"],
        "asks other prompts than the curriculum's: leave out one of them",
    ),
    ("training.bf16=yes", "must be true or false"),
    ("model.name=7", "must be text"),
    ("training=3", "must be a section"),
    ("tasks=3", "must be a mapping of names"),
    ("tasks=[{weight: 2}]", "a list of tasks holds names, or mappings with a name"),
    ("tasks=[a, a]", "task 'a' stands twice"),
    ("evaluation.tasks=[maze, maze]", "task 'maze' stands twice: give the second one a label"),
    ("evaluation.tasks=[{task: maze}]", "mappings with a name: [a, {name: b, num_examples: 20}]"),
    ("evaluation.tasks.easy.task=3", "must be text"),
    ("evaluation.tasks.maze.num_examples=2.5", "must be a whole number"),
    ("rewards=correctness", "must be a mapping of names"),
    ("rewards.format=high", "must be a section"),
    ("logging.report_to=wandb", "must be a list"),
    ("lora.target_modules=3", "must be a list"),
    ("tasks.chain_sum.config=[1]", "must be a mapping of names"),
    # ranges
    ("seed=-1", "must be at least 0"),
    ("seed=4294967296", "must be below 4294967296"),
    ("training.max_steps=0", "must be at least 1"),
    ("training.learning_rate=0", "must be above 0"),
    ("training.learning_rate=-1e-6", "must be above 0"),
    ("training.learning_rate=.inf", "must be a finite number"),
    ("training.learning_rate=.nan", "must be a finite number"),
    ("training.num_generations=1", "must be at least 2"),
    ("training.temperature=0", "must be above 0"),
    ("training.top_p=1.5", "must be at most 1"),
    ("training.adam_beta2=2", "must be at most 1"),
    ("engine.port=70000", "must be at most 65535"),
    ("tasks.chain_sum.weight=0", "must be above 0"),
    ("tasks.chain_sum.weight=1e400", "must be at most 1e+100"),
    ("evaluation.rollouts_per_example=0", "must be at least 1"),
    ("evaluation.num_held_out_examples=0", "must be at least 1"),
    ("evaluation.tasks.maze.num_examples=0", "must be at least 1"),
    ("model.name=''", "must not be empty"),
    ("training.max_steps=1e30", "must be a whole number"),
    ("training.max_steps=99999999999999999999", "must be at most 2147483647"),
    ("splits.num_eval_examples=99999999999999999999", "must be at most 2147483647"),
    ("rewards.format=1e308", "must be at most 1e+100"),
    ("rewards.format=true", "must be a section"),
    ("rewards={format: .nan}", "rewards.format = nan @ command line: weight must be a finite number"),
    ('output.dir="a\\0b"', "holds a null character"),
    ('model.name="a\\0b"', "holds a null character"),
    # choices
    ("engine.kind=vlm", "must be one of 'embedded' or 'vllm'"),
    ("grading=strict", "must be one of 'hardened', 'partial' or 'upstream'"),
    ("training.loss_type=ppo", "must be one of 'bnpo', 'grpo', 'dr_grpo' or 'dapo'"),
    ("prompt.placement=end", "must be one of 'system', 'user' or 'user_after'"),
    ("logging.report_to=[wand]", "must be one of 'tensorboard', 'wandb' or 'trackio'"),
    ("rewards.format.when=right", "must be one of 'answered', 'correct' or 'not_correct'"),
    # names of other things
    ("tasks.chain_sums.weight=1", "unknown task 'chain_sums': did you mean 'chain_sum'"),
    ("tasks.game_of_24={}", "it is called 'puzzle24'"),
    ("tasks.chain_sum.config.max_term=3", "unknown option of task 'chain_sum' 'max_term'"),
    ("tasks.chain_sum.level=99", "level must be a whole number from 0 to"),
    ("tasks.chain_sum.levels.num_term=1", "unknown level attribute of task 'chain_sum' 'num_term'"),
    ("evaluation.tasks.mase={}", "unknown task 'mase': did you mean 'maze'"),
    ("evaluation.tasks.mase={}", "; a label of your own needs task: NAME"),
    ("evaluation.tasks.spell_backward_4={}", "unknown task 'spell_backward_4': did you mean 'spell_backward'"),
    ("evaluation.tasks.easy.task=mase", "evaluation.tasks.easy.task = 'mase' @ command line: unknown task 'mase'"),
    ("evaluation.tasks.easy.task=''", "must not be empty"),
    ("evaluation.tasks.easy={task: maze, config: {min_grid: 3}}", "unknown option of task 'maze' 'min_grid'"),
    ("evaluation.tasks.easy={task: spell_backward, level: 99}", "level must be a whole number from 0 to"),
    ("rewards.correctnes=1", "unknown reward 'correctnes': did you mean 'correctness'"),
    ("rewards.length.options.max_token=3", "unknown option of reward 'length' 'max_token'"),
    ("model.name=./nowhere", "there is no such folder here"),
    ("monitors.stop_on=[reward_hack]", "unknown monitor 'reward_hack': did you mean 'reward_hacking'"),
    ("monitors.off=[kl]", "unknown monitor 'kl': "),
    ("monitors.kl_spikes=3", "unknown key 'kl_spikes': did you mean 'kl_spike'"),
    ("monitors.window=1", "must be at least 2"),
    ("monitors.length_drift=1", "must be above 1"),
    ("monitors.truncation=20", "must be at most 1"),
    # combinations
    (["monitors.stop_on=[truncation]", "monitors.off=[all]"], "truncation is off: take it out of monitors.off"),
    ("evaluation.tasks.chain_sum={}", "is trained on, and so evaluated anyway"),
    ("evaluation.tasks.chain_sum.level=1", "under a label of its own, such as chain_sum_hard: {task: chain_sum,"),
    ("evaluation.tasks.chain_sum.task=chain_sum", "is trained on, and so evaluated anyway"),
    ("evaluation.tasks.chain_sum.task=spell_backward", "is the name of a task: choose another label"),
    ("evaluation.tasks.maze.task=chain_sum", "is the name of a task: choose another label"),
    ("evaluation.tasks.held_out.task=maze", "is the name of a figure (eval/held_out)"),
    ("evaluation.tasks={a/b: {task: maze}}", "a label holds letters, digits, '_', '-' and '.'"),
    ("evaluation.tasks={'': {task: maze}}", "a label holds letters, digits, '_', '-' and '.'"),
    ("training.rollouts_per_step=60", "not divisible by num_generations=8; try 56 or 64"),
    ("training.rollouts_per_step=4", "not divisible by num_generations=8; try 8"),
    (["training.rollouts_per_step=100", "training.per_device_train_batch_size=3"], "try 96 or 120"),
    ("training.per_device_train_batch_size=24", "does not divide the 128 rollouts of a step on each process; try 16"),
    ("splits.num_train_examples=1", "fewer than the 16 prompts of a step"),
    ("splits.num_eval_examples=1", "fewer than the 2 tasks"),
    ("rewards={correctness: 0}", "every weight is 0"),
    ("rewards={}", "names no reward"),
    ("tasks={}", "is empty: name at least 1"),
    ("training.warmup_steps=500", "more than the 200 steps of the run"),
    ("training.epsilon_high=0.1", "training.epsilon_high = 0.1 @ command line: must be at least epsilon (0.2)"),
    ("training.optim=adamw_8bit", "needs bitsandbytes, which is not installed"),
    ("model.dtype=bfloat16", "without LoRA small updates round to nothing"),
    ("engine.num_batches_ahead=1", "is for engine.kind: vllm"),
    ("engine.importance_sampling_correction=true", "is for engine.kind: vllm"),
    (["engine.kind=vllm", "engine.importance_sampling_correction=true", "training.top_p=0.9"], "needs training.top_p"),
    (["evaluation.temperature=0", "evaluation.greedy=false", "evaluation.rollouts_per_example=4"], "all answers"),
    ("evaluation.temperature=0", "that is the answer already"),
    (["splits.num_eval_examples=0", "evaluation.every=5"], "there is nothing to evaluate"),
    ("curriculum={tasks: {}}", "names no task"),
    ("curriculum={tasks: {maze: {}}}", "is not trained on"),
    ("curriculum={tasks: {spell_backward: {attributes: [len]}}}", "number 1: no attribute of this task: word_len"),
    ("curriculum={tasks: {spell_backward: {start: 99}}}", "the highest level is"),
    ("curriculum={tasks: {spell_backward: {start: 2, highest: 1}}}", "is above highest (1)"),
    ("curriculum={tasks: {spell_backward: {}}, failure_threshold: 0.8}", "must be below success_threshold (0.7)"),
    ("curriculum={tasks: {spell_backward: {}}, schedule: {first: 1}}", "must map steps to levels"),
    ("curriculum={tasks: {spell_backward: {}}, schedule: {0: 99}}", "the highest level of spell_backward is"),
    ("curriculum={tasks: {spell_backward: {}}, schedule: {}}", "must map steps to levels"),
    ("curriculum={tasks: {spell_backward: {}}, schedule: {5: 0, 05: 1}}", "names a step twice"),
    (["curriculum={tasks: {spell_backward: {}}}", "tasks.spell_backward.level=1"], "set by the curriculum"),
    (["curriculum={tasks: {spell_backward: {}}}", "splits.manifest=m.json"], "cannot be kept with a curriculum"),
    ("hub.enabled=true", "hub.enabled needs it: USER/NAME"),
    ("hub.repo_id=legs", "is no repository: USER/NAME"),
    ("hub.repo_id=me/a--b", "is no repository that the Hub takes"),
    ("hub.optimizer_state=some", "must be one of 'none' or 'full'"),
    ([*UPLOADED, "hub.every=150"], "output.save_every is 100: such as 200"),
    ([*UPLOADED, "hub.every=100", "output.save_every=0"], "there are no checkpoints to upload on the way"),
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
    ("override", "path", "words"),
    [
        ("tasks.maze.config.min_grid_sise=3", "tasks.maze.config.min_grid_sise = 3", "did you mean 'min_grid_size'"),
        ("tasks.maze.config.seed=3", "tasks.maze.config.seed = 3", "'seed' is no option here"),
        ("tasks.maze.level=99", "tasks.maze.level = 99", "level must be a whole number from 0 to"),
        (
            "tasks.spell_backward.levels.word_lem=1",
            "tasks.spell_backward.levels.word_lem = 1",
            "did you mean 'word_len'",
        ),
        ("tasks.spell_backward.levels.word_len=99", "tasks.spell_backward.levels.word_len = 99", "from 0 to"),
        (
            "evaluation.tasks.chain_sum.config.max_term=3",
            "evaluation.tasks.chain_sum.config.max_term = 3",
            "'max_terms'",
        ),
        ("rewards.length.options.max_token=3", "rewards.length.options.max_token = 3", "did you mean 'max_tokens'"),
        (
            "rewards.length.options.max_tokens=-1",
            "rewards.length.options.max_tokens = -1",
            "must be a number from 0 up",
        ),
    ],
)
def test_options_are_told_at_their_own_place(base: Path, override: str, path: str, words: str) -> None:
    """Not at the task or the reward that they belong to."""
    with pytest.raises(ConfigError) as caught:
        load_train_config(base, ["tasks={maze: {}, spell_backward: {}}", override])
    assert str(caught.value).startswith(f"{path} @ command line: ")
    assert words in str(caught.value)


def test_all_options_of_a_task_are_told_each_with_its_line(base: Path) -> None:
    """Of a file, by the lines that name them; in the short form of a list, at the list."""
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
    with pytest.raises(ConfigError, match=r"@ run\.yaml:2: maze\.config\.min_grid_sise unknown option of task 'maze'"):
        load_train_config(base)


def test_a_run_without_evaluation_is_one_override(base: Path) -> None:
    """Also where a file spells out that there would be one before and after."""
    spelled = ["evaluation.before=true", "evaluation.after=true"]
    assert load_train_config(base, ["splits.num_eval_examples=0", *spelled]).splits.num_eval_examples == 0


def test_a_huge_batch_is_refused_at_once(base: Path) -> None:
    """Without looking through all numbers that might divide it; both mistakes that it makes are told."""
    huge = ["training.per_device_train_batch_size=1000000", "training.rollouts_per_step=2147483640"]
    huge.append("splits.num_train_examples=2147483647")
    with pytest.raises(ConfigError, match=r"try 950214 or 1127288"):
        load_train_config(base, huge)


@pytest.mark.parametrize(
    ("processes", "micro", "words"),
    [
        (1, 8, None),
        (2, 8, None),
        (3, 8, r"rollouts_per_step = 128 .*: 128 rollouts are not divisible by 3 processes; try 120 or 144"),
        (7, 8, r"rollouts_per_step = 128 .*: 128 rollouts are not divisible by 7 processes; try 112 or 168"),
        (32, 8, r"per_device_train_batch_size = 8 .*: 8 does not divide the 4 rollouts of a step .*; try 2 or 4"),
    ],
)
def test_a_batch_is_checked_for_the_processes_that_share_it(
    base: Path, processes: int, micro: int, words: str | None
) -> None:
    """What is suggested works."""
    override = ["training.rollouts_per_step=128", f"training.per_device_train_batch_size={micro}"]
    if words is None:
        assert load_train_config(base, override, processes=processes).training.rollouts_per_step == 128
        return
    with pytest.raises(ConfigError, match=words) as caught:
        load_train_config(base, override, processes=processes)
    key = str(caught.value).partition(" = ")[0]
    for size in str(caught.value).partition("; try ")[2].split(" or "):
        load_train_config(base, [*override, f"{key}={size}"], processes=processes)


def test_the_fields_that_other_sections_hold_are_pythons_alone(base: Path) -> None:
    """They are in no resolved config and in no document, and get their values from those sections."""
    config = load_train_config(base, ["seed=3", "output.save_every=5", "output.save_total_limit=2", "output.dir=x"])
    assert not OWNED_ELSEWHERE.keys() & resolved(config)["training"].keys()
    args = grpo_config(config, Path("x"))
    assert (args.seed, args.save_steps, args.save_total_limit, args.output_dir) == (3, 5, 2, "x")
    assert GRPOConfig(seed=3, save_steps=5, save_total_limit=2, output_dir="x") == args


def test_mistakes_of_all_kinds_are_shown_together(base: Path) -> None:
    """Of types first, for nothing else can be told before they are right; then all of meaning."""
    with pytest.raises(ConfigError) as caught:
        load_train_config(base, ["seed=x", "training.max_steps=0", "model.nam=1"])
    assert len(str(caught.value).splitlines()) == 4
    with pytest.raises(ConfigError) as caught:
        load_train_config(base, ["tasks.mase={}", "rewards.lenth=1", "training.warmup_steps=500"])
    assert len(str(caught.value).splitlines()) == 4


def test_forms_that_stand_for_others(base: Path) -> None:
    """A task's name, a list of names and mappings; a reward's weight."""
    assert list(load_train_config(base, ["tasks=chain_sum"]).tasks) == ["chain_sum"]
    config = load_train_config(base, ["tasks=[maze, {name: chain_sum, weight: 3}]", "rewards={correctness: 2}"])
    assert {name: task.weight for name, task in config.tasks.items()} == {"maze": 1.0, "chain_sum": 3.0}
    assert config.rewards["correctness"].weight == 2.0
    config = load_train_config(base, ["evaluation.tasks=[maze, {name: easy, task: maze, num_examples: 3}]"])
    assert {name: (task.task, task.num_examples) for name, task in config.evaluation.tasks.items()} == {
        "maze": (None, None),
        "easy": ("maze", 3),
    }


def test_a_prompt_has_the_environments_names(base: Path) -> None:
    """What a config calls `system_prompt` and `preamble` is what `load_environment` calls so."""
    given = {"system_prompt": "Use tags.", "placement": "user_after", "preamble": "Be brief."}
    arguments = environment_arguments(load_train_config(base, [f"prompt={given}"]))
    assert {name: arguments[name] for name in ("system_prompt", "prompt_placement", "preamble")} == {
        "system_prompt": "Use tags.", "prompt_placement": "user_after", "preamble": "Be brief.",
    }  # fmt: skip


def test_the_resolved_config_reads_equal(base: Path) -> None:
    """Whatever it says: a run can be repeated from its own config.yaml."""
    overrides = [
        "prompt.system_prompt='Ünïcode \x85 \"quotes\" # no comment'", "training.learning_rate=1e-6", "lora.r=4",
        "curriculum={tasks: {spell_backward: {}}, schedule: {0: 0, 10: 1}}",
        "evaluation.tasks={maze: {level: 1}, words: {task: spell_backward, num_examples: 7}}",
    ]  # fmt: skip
    config = load_train_config(base, overrides)
    Path("again.yaml").write_text(resolved_yaml(config), encoding="utf-8")
    assert load_train_config("again.yaml") == config


def test_a_dry_run_imports_nothing_heavy(base: Path) -> None:
    """Which is why it takes under a second."""
    code = (
        "import sys; from rg_env.cli.main import run; run(['train', 'run.yaml', '--dry-run']); "
        "print({'torch', 'reasoning_gym', 'verifiers', 'transformers', 'datasets', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert "#   steps       200 of 128 rollouts: 16 prompts x 8 (1 process x 16 micro-batches of 8)\n" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "questions"),
    [
        ([], "2000 to train on, 3200 prompts: 1.6 epochs"),
        (["training.num_iterations=2"], "2000 to train on, 1600 prompts: 0.8 epochs"),
        (["splits.num_train_examples=30"], "30 to train on, 3200 prompts: 200 epochs"),
        (["curriculum={tasks: {spell_backward: {}}}"],
         "1333 to train on, 3200 prompts: 1.6 epochs; those of spell_backward drawn for each prompt, at its level"),
        (["curriculum={tasks: [spell_backward, chain_sum]}"], "drawn for each of 3200 prompts, at its task's level"),
    ],
)  # fmt: skip
def test_the_plan_tells_which_questions_come_again(base: Path, overrides: list[str], questions: str) -> None:
    """Those of a curriculum's tasks do not. What fills no batch is left out of an epoch: 14 of 30 questions."""
    assert f"#   questions   {questions}\n" in describe(load_train_config(base, overrides))


def test_the_plan_tells_when_checkpoints_are_made(base: Path) -> None:
    """At the end in any case; on the way only where the run is longer."""
    for every, words in (
        (100, "a checkpoint every 100 steps and at the end"),
        (200, "one checkpoint"),
        (0, "one checkpoint"),
    ):
        assert f"outputs/, {words}" in describe(load_train_config(base, [f"output.save_every={every}"]))


def test_the_plan_tells_what_is_published(base: Path) -> None:
    """And nothing where nothing is."""
    assert "upload" not in describe(load_train_config(base)).partition("# The plan")[2]
    asked = [*UPLOADED, "hub.private=true", "hub.every=100", "hub.optimizer_state=full"]
    words = "me/legs on the Hugging Face Hub (private), every 100 steps and at the end, with the optimizer's state"
    assert f"\n#   upload      {words}" in describe(load_train_config(base, asked))


def test_the_plan_tells_of_curriculum_and_held_out_tasks(base: Path) -> None:
    config = load_train_config(
        base,
        [
            "curriculum={tasks: {spell_backward: {}}}",
            "evaluation.tasks={maze: {}, words: {task: spell_backward, num_examples: 7}, lcm: {num_examples: 9}}",
            "lora.r=4",
        ],
    )
    text = describe(config)
    assert "#   curriculum  spell_backward" in text
    assert "#   held out    maze (50), lcm (9)\n" in text
    assert "#   labelled    words: spell_backward (7)\n" in text
    assert "#   tasks       spell_backward (33.4 % of the prompts), chain_sum (1333)" in text
    assert "LoRA of rank 4" in text


def parts(annotation: Any) -> list[type[Section]]:
    """The schemas named in an annotation."""
    named = [annotation, *getattr(annotation, "__args__", ())]
    return [each for each in named if isinstance(each, type) and issubclass(each, Section)]


def sections(schema: type[Section]) -> list[type[Section]]:
    """A schema and all schemas in it."""
    fields = schema.model_fields.values()
    return [schema, *(found for field in fields for part in parts(field.annotation) for found in sections(part))]


@pytest.mark.parametrize("schema", dict.fromkeys(sections(TrainConfig)), ids=lambda schema: schema.__name__)
def test_every_field_of_every_section_says_what_it_is(schema: Any) -> None:
    assert schema.__doc__
    described = {
        "model",
        "splits",
        "prompt",
        "engine",
        "training",
        "lora",
        "evaluation",
        "curriculum",
        "monitors",
        "logging",
        "output",
        "hub",
    }
    for name, field in schema.model_fields.items():
        assert field.description or (schema is TrainConfig and name in described), name


def test_the_documents_are_made_from_the_schemas() -> None:
    """`python tools/config_docs.py` writes them anew."""
    assert DOCUMENT.read_text(encoding="utf-8") == render()
    assert DOCUMENT.with_name("evaluation.md").read_text(encoding="utf-8") == render_evaluation()
