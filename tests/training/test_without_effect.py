"""Keys that do nothing: which are told and which not, and that it is so."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from rg_env.cli.main import run as run_cli
from rg_env.core.grading.rollout import Rollout
from rg_env.core.grading.scoring import Score
from rg_env.core.rewards.builtin import resolve_rewards
from rg_env.errors import InputError
from rg_env.training.build import run_config
from rg_env.training.config.dry_run import describe
from rg_env.training.config.grpo import GRPOConfig
from rg_env.training.config.load import load_train_config
from rg_env.training.config.schema import TrainConfig
from rg_env.training.config.unused_keys import RULES, without_effect

SCHEDULE = "curriculum={tasks: {chain_sum: {start: 1}}, schedule: {0: 0, 9: 1}"
VLLM = "engine.kind=vllm"
FEW_STEPS = "the run has fewer steps than monitors.window"
NO_KL = "training.beta: 0, engine.importance_sampling_correction: false"
NEVER = ["evaluation.before=false", "evaluation.after=false", "evaluation.every=0"]
UPLOADED = ["hub.enabled=true", "hub.repo_id=me/x"]

CASES: list[tuple[str | list[str], str, str, str | list[str]]] = [
    # what is given, the keys of it that do nothing, why, and with what they do something
    ("engine.port=8001", "engine.port", "engine.kind: embedded", VLLM),
    ("engine.host=h", "engine.host", "engine.kind: embedded", VLLM),
    ("engine.connect_timeout=9", "engine.connect_timeout", "engine.kind: embedded", VLLM),
    ("engine.weight_sync_timeout=9", "engine.weight_sync_timeout", "engine.kind: embedded", VLLM),
    (["engine.importance_sampling_cap=3", VLLM], "engine.importance_sampling_cap",
     "engine.importance_sampling_correction: false", "engine.importance_sampling_correction=true"),
    (["training.lr_scheduler_type=constant", "training.warmup_steps=20"], "training.warmup_steps",
     "training.lr_scheduler_type: constant", "training.lr_scheduler_type=linear"),
    (["training.optim=sgd", "training.adam_beta1=0.8"], "training.adam_beta1", "training.optim is no AdamW",
     "training.optim=adamw_torch"),
    (["training.optim=adafactor", "training.adam_beta2=0.8"], "training.adam_beta2", "training.optim is no AdamW",
     "training.optim=adamw_torch"),
    ("training.epsilon=0.3", "training.epsilon", "training.num_iterations: 1", "training.num_iterations=2"),
    ("training.epsilon_high=0.3", "training.epsilon_high", "training.num_iterations: 1", "training.num_iterations=2"),
    ("training.off_policy_mask_threshold=0.1", "training.off_policy_mask_threshold",
     "training.num_iterations: 1, engine.kind: embedded", "training.num_iterations=2"),
    ("training.filter_groups_rounds=5", "training.filter_groups_rounds", "training.filter_groups: false",
     "training.filter_groups=true"),
    (["tasks=chain_sum", "training.shuffle_dataset=false", "curriculum={tasks: [chain_sum]}"],
     "training.shuffle_dataset", "the curriculum draws all questions", "tasks=[maze, chain_sum]"),
    ("tasks={chain_sum: {weight: 2}}", "tasks.chain_sum.weight", "there is no other task", "tasks.maze={}"),
    ("evaluation.tasks={words: {task: spell_backward, level: 1, config: {min_word_len: 3, max_word_len: 4}}}",
     "evaluation.tasks.words.level", "the task's config or levels set the same options",
     "evaluation.tasks.words.config={min_word_len: 3}"),
    ("tasks.spell_backward={level: 1, config: {min_word_len: 3, max_word_len: 4}}", "tasks.spell_backward.level",
     "the task's config or levels set the same options", "tasks.spell_backward.config={min_word_len: 3}"),
    ("tasks.maze={level: 1, levels: {dist: 2, grid_size: 2}}", "tasks.maze.level",
     "the task's config or levels set the same options", "tasks.maze.levels={dist: 2}"),
    ("tasks.maze={levels: {dist: 2, grid_size: 2}, config: {min_dist: 7, max_dist: 8}}", "tasks.maze.levels.dist",
     "the task's config or levels set the same options", "tasks.maze.config={min_dist: 7}"),
    ("evaluation.tasks.maze={level: 1, levels: {dist: 2, grid_size: 2}}", "evaluation.tasks.maze.level",
     "the task's config or levels set the same options", "evaluation.tasks.maze.levels={dist: 2}"),
    ("evaluation.tasks.maze={levels: {dist: 2, grid_size: 2}, config: {min_dist: 7, max_dist: 8}}",
     "evaluation.tasks.maze.levels.dist", "the task's config or levels set the same options",
     "evaluation.tasks.maze.config={min_dist: 7}"),
    (["prompt.system_prompt=''", "prompt.placement=user"], "prompt.placement", "prompt.system_prompt is empty",
     "prompt.system_prompt=Hm"),
    ("rewards.cosine={when: correct, options: {wrong_short: -2.0, correct_long: 0.1}}",
     "rewards.cosine.options.wrong_short", "rewards.cosine.when: correct", "rewards.cosine.when=answered"),
    ("rewards.cosine={when: not_correct, options: {wrong_short: -2.0, correct_long: 0.1}}",
     "rewards.cosine.options.correct_long", "rewards.cosine.when: not_correct", "rewards.cosine.when=null"),
    (["splits.num_eval_examples=0", "splits.eval_seed=3"], "splits.eval_seed", "nothing is evaluated",
     "evaluation.tasks.maze={}"),
    (["splits.num_eval_examples=0", "evaluation.rollouts_per_example=4"], "evaluation.rollouts_per_example",
     "nothing is evaluated", "evaluation.tasks.maze={}"),
    ([*NEVER, "evaluation.temperature=0.5"], "evaluation.temperature", "nothing is evaluated", "evaluation.after=true"),
    ([*NEVER, "evaluation.top_p=0.5"], "evaluation.top_p", "nothing is evaluated", "evaluation.before=true"),
    ([*NEVER, "evaluation.max_tokens=5"], "evaluation.max_tokens", "nothing is evaluated", "evaluation.every=5"),
    ([*NEVER, "evaluation.greedy=false"], "evaluation.greedy", "nothing is evaluated", "evaluation.every=null"),
    (["evaluation={temperature: 0, greedy: false, top_p: 0.5}"], "evaluation.top_p", "evaluation.temperature: 0",
     "evaluation.temperature=0.1"),
    ("evaluation.num_held_out_examples=9", "evaluation.num_held_out_examples", "evaluation.tasks names none",
     "evaluation.tasks.maze={}"),
    (f"{SCHEDULE}, success_threshold: 0.9}}", "curriculum.success_threshold", "curriculum.schedule",
     "curriculum.schedule=null"),
    (f"{SCHEDULE}, failure_threshold: 0.2}}", "curriculum.failure_threshold", "curriculum.schedule",
     "curriculum.schedule=null"),
    (f"{SCHEDULE}, check_every: 2}}", "curriculum.check_every", "curriculum.schedule", "curriculum.schedule=null"),
    (f"{SCHEDULE}, step: 2}}", "curriculum.step", "curriculum.schedule", "curriculum.schedule=null"),
    (f"{SCHEDULE}}}", "curriculum.tasks.chain_sum.start", "curriculum.schedule has step 0",
     "curriculum.schedule={5: 1}"),
    ("logging.project=p", "logging.project", "logging.report_to names neither wandb nor trackio",
     "logging.report_to=[tensorboard, wandb]"),
    (["logging.run_name=r", "logging.report_to=[tensorboard]"], "logging.run_name",
     "logging.report_to names neither wandb nor trackio", "logging.report_to=[wandb]"),
    (["monitors.off=[truncation]", "monitors.truncation=0.3"], "monitors.truncation", "monitors.off",
     "monitors.off=[]"),
    (["monitors.off=[all]", "monitors.window=5"], "monitors.window", "monitors.off", "monitors.off=[truncation]"),
    ("monitors.window=201", "monitors.window", FEW_STEPS, "monitors.window=200"),
    (["monitors.stop_on=[truncation]", "training.max_steps=9", "training.warmup_steps=0"], "monitors.stop_on",
     FEW_STEPS, "training.max_steps=10"),
    (["training.rollouts_as_steps=true", "monitors.stop_on=[truncation]"], "monitors.stop_on", FEW_STEPS,
     "training.max_steps=1153"),  # of 128 at once
    ("monitors.kl_spike=3", "monitors.kl_spike", NO_KL, "training.beta=0.1"),
    ("monitors.stop_on=[truncation, kl_spike]", "monitors.stop_on", f"kl_spike cannot fire with {NO_KL}",
     [VLLM, "engine.importance_sampling_correction=true"]),
    ("monitors.ratio_spike=3", "monitors.ratio_spike", "training.num_iterations: 1", "training.num_iterations=2"),
    ("monitors.stop_on=[ratio_spike]", "monitors.stop_on", "ratio_spike cannot fire with training.num_iterations: 1",
     "training.num_iterations=2"),
    ("monitors.format_rate=0.9", "monitors.format_rate", "rewards have no think_format", "rewards.think_format=0.1"),
    ("monitors.stop_on=[format_rate]", "monitors.stop_on", "format_rate cannot fire, for rewards have no think_format",
     "rewards.think_format=0.1"),
    (["logging.examples_every=0", "logging.num_examples=5"], "logging.num_examples", "logging.examples_every: 0",
     "logging.examples_every=1"),
    ("hub.repo_id=me/x", "hub.repo_id", "hub.enabled: false", "hub.enabled=true"),
    ("hub.private=true", "hub.private", "hub.enabled: false", UPLOADED),
    ("hub.optimizer_state=full", "hub.optimizer_state", "hub.enabled: false", UPLOADED),
    ("hub.every=100", "hub.every", "hub.enabled: false", UPLOADED),
    (["hub.every=200", *UPLOADED], "hub.every", "the run has no more steps", "training.max_steps=201"),
]  # fmt: skip


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small config in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("model: {name: tiny}\ntasks: {spell_backward: {}, chain_sum: {}}\n")
    return Path("run.yaml")


def told(config: TrainConfig) -> dict[str, str]:
    """Key and reason, as the line has them."""
    parts = without_effect(config).removeprefix("without effect: ").split("; ")
    pairs = [part.removesuffix(")").partition(" (") for part in parts if part]
    return {key: reason for keys, _, reason in pairs for key in keys.split(", ")}


@pytest.mark.parametrize(("given", "key", "reason", "needed"), CASES, ids=[case[1] for case in CASES])
def test_what_does_nothing_is_told(
    base: Path, given: str | list[str], key: str, reason: str, needed: str | list[str]
) -> None:
    """With the reason, and no longer with what it needs."""
    given, needed = ([each] if isinstance(each, str) else each for each in (given, needed))
    config = load_train_config(base, given)
    assert told(config)[key] == reason
    assert f"\n#   {without_effect(config)}" in describe(config)
    assert key not in told(load_train_config(base, [*given, *needed]))


def test_every_rule_is_in_the_table() -> None:
    """Of the monitors, which have a key each, one stands for all that are off."""
    patterns = [pattern for rule in RULES for pattern in rule.keys if rule.reason != "monitors.off"]
    assert [each for each in patterns if not any(fnmatchcase(key, each) for _, key, _, _ in CASES)] == []


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["engine.port=8000", "training.epsilon=0.2"],  # the defaults
        ["engine.generation_timeout=9"],  # the embedded engine's too
        ["training.lr_scheduler_type=constant", "training.warmup_steps=0"],  # what happens
        ["training.optim=sgd", "training.weight_decay=0.1"],  # every optimizer decays
        [
            "training.shuffle_dataset=false",
            "curriculum={tasks: [chain_sum]}",
        ],  # the order of the other task's questions
        ["tasks.maze={level: 2, levels: {dist: 2}}"],  # what happens
        ["tasks.maze={levels: {dist: 1}, config: {min_dist: 7, max_dist: 8}}"],  # grid_size stands at level 0 by that
        ["tasks.maze={level: 1, config: {min_dist: 7, max_dist: 8}}"],
        ["curriculum={tasks: [chain_sum], schedule: {0: 1}, window: 5}"],  # of the accuracy that is logged
        ["splits.num_eval_examples=0", "evaluation.before=false"],  # what happens
        ["output.save_every=0", "output.save_total_limit=1"],  # of a run that goes on
        ["monitors.window=200", "monitors.stop_on=[zero_variance]", "monitors.truncation=0.5"],
        ["training.max_steps=2", "training.warmup_steps=0"],  # the monitors' own window is not asked for
        ["training.rollouts_as_steps=true", "training.lr_scheduler_type=constant"],  # warmup_steps is the default
        ["rewards={correctness: 1, length: {weight: 0, options: {max_tokens: 9}}}"],  # a metric
    ],
    ids=str,
)
def test_what_does_something_or_says_what_happens_is_not_told(base: Path, overrides: list[str]) -> None:
    assert without_effect(load_train_config(base, overrides)) == ""


def test_all_of_a_reason_stand_together_in_one_line(base: Path) -> None:
    config = load_train_config(base, ["engine.port=1", "engine.host=h", "training.epsilon=0.3"])
    server = "engine.host, engine.port (engine.kind: embedded)"
    assert without_effect(config) == f"without effect: {server}; training.epsilon (training.num_iterations: 1)"


def test_a_run_tells_it_before_anything_is_loaded(
    base: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: not on each of several processes."""
    config = load_train_config(base, ["engine.port=1", "output.dir=run"])
    config = config.model_copy(update={"model": config.model.model_copy(update={"name": "nowhere/at-all"})})
    for rank, expected in (("0", "without effect: engine.port (engine.kind: embedded)\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(InputError, match="cannot load the model"):
            run_config(config)
        assert capsys.readouterr().out == expected


def test_an_override_for_a_laptop_works_over_a_config_for_a_server(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base.write_text(f"{base.read_text()}engine: {{kind: vllm, host: gpu-7, port: 9000}}\n")
    assert run_cli(["train", str(base), "engine.kind=embedded", "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("\n#   without effect: engine.host, engine.port (engine.kind: embedded)\n")


# --- that it is so


def test_clipping_never_acts_on_a_batch_that_is_used_once() -> None:
    """Neither on the loss nor on its gradient: the old log-probabilities are its own."""
    import torch

    from rg_env.training.algorithms.loss import Clipping, policy_terms

    def outcome(low: float, high: float) -> tuple[Any, Any]:
        logps = torch.linspace(-3, -0.1, 8).view(2, 4).requires_grad_()
        values, _ = policy_terms(logps, logps.detach(), torch.tensor([0.7, -1.3]), Clipping(low, high))
        values.sum().backward()
        return values.detach(), logps.grad

    for ours, theirs in zip(outcome(0.2, 0.2), outcome(0.0, 0.9), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("optim", "uses"), [("sgd", False), ("adafactor", False), ("adamw_torch", True), ("adamw_torch_fused", True)]
)
def test_the_betas_are_adams_alone(optim: str, uses: bool) -> None:
    import torch

    from rg_env.training.strategy import make_optimizer

    optimizer = make_optimizer(GRPOConfig(optim=optim, adam_beta1=0.7, adam_beta2=0.8), torch.nn.Linear(2, 2))
    assert (optimizer.defaults.get("betas") == (0.7, 0.8)) == uses


def test_a_constant_rate_has_no_warmup(base: Path) -> None:
    from rg_env.training.reporting.metrics import learning_rate

    config = load_train_config(base, ["training.lr_scheduler_type=constant", "training.warmup_steps=20"])
    assert {learning_rate(config.training, step) for step in range(30)} == {config.training.learning_rate}


@pytest.mark.parametrize(("when", "other"), [("correct", "wrong"), ("not_correct", "correct")])
def test_a_gate_closes_before_the_other_half_of_the_cosine(when: str, other: str) -> None:
    """Whatever became of the answer."""

    def paid(status: Any, options: dict[str, float]) -> float:
        (cosine,) = resolve_rewards([{"name": "cosine", "when": when, "options": options}])
        score = Score(0.5, "1", status, "leg_counting")
        return cosine.value(Rollout("?", "x", "1", {}, completion_tokens=99).with_score(score), {})

    for status in ("correct", "partial", "wrong", "no_answer", "too_long", "timed_out", "ungradable"):
        assert paid(status, {f"{other}_short": 7.0, f"{other}_long": 9.0}) == paid(status, {})
