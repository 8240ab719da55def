"""Rollouts: the sampled tokens that training uses, the rows of a batch, and the groups that are replaced."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from run_metrics import logged
from transformers import AutoModelForCausalLM

from rg_env.core.environment import Environment, Scored
from rg_env.core.grading.scoring import Rollout
from rg_env.errors import InputError, TrainingError
from rg_env.inference.protocol import Completion, PromptEncoder, Sampling
from rg_env.tiny import POLICY_DIR
from rg_env.training import EvaluationPlan, GRPOConfig, load_train_config, train
from rg_env.training.rollouts import BatchOrder, GroupFilter, Rollouts, RolloutSampler

ROWS = [{"question": f"{n} + {n} =", "answer": str(2 * n)} for n in range(4)]


class Scripted:
    """An engine that returns given completions."""

    def __init__(self, completions: list[Completion], end: int) -> None:
        self.completions, self.end_ids = completions, frozenset({end})
        self.prompts: list[list[int]] = []

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        self.prompts = [list(prompt) for prompt in prompts]
        return self.completions[: len(prompts)]


@pytest.fixture
def sampled(tokenizer: Any) -> Any:
    """Rollouts with an end token, without one, with special tokens in the text, and with only an end token."""
    end = tokenizer.eos_token_id
    text = tokenizer("<answer>2</answer>")["input_ids"]
    special = tokenizer.pad_token_id if tokenizer.pad_token_id != end else tokenizer.all_special_ids[0]
    ids = [[*text, end], text, [text[0], special, *text[1:], end], [end]]
    completions = [
        Completion(each, [-0.5 * (n + 1) for n in range(len(each))], "stop" if each[-1] == end else "length")
        for each in ids
    ]
    engine = Scripted(completions, end)
    env = Environment(ROWS)
    rollouts = RolloutSampler(env, engine, PromptEncoder(tokenizer)).sample(env.train_rows, Sampling())
    return rollouts, completions, engine, env


def test_tensors_are_prompt_and_sampled_tokens(sampled: Any, tokenizer: Any) -> None:
    """The tensors include special tokens and the end token, each with its log-probability when sampled, and nothing
    else."""
    rollouts, completions, engine, env = sampled
    tensors = rollouts.tensors(pad_token=0)
    assert tensors["rewards"].dtype == torch.float64  # float32 would round small differences between large rewards away
    for row, (prompt, completion) in enumerate(zip(engine.prompts, completions, strict=True)):
        assert prompt == tokenizer.apply_chat_template(
            env.train_rows[row]["prompt"], add_generation_prompt=True, return_dict=False
        )
        length = len(prompt) + len(completion.token_ids)
        assert tensors["input_ids"][row, :length].tolist() == prompt + completion.token_ids
        mask = tensors["loss_mask"][row]
        assert mask.nonzero().squeeze(1).tolist() == list(range(len(prompt) - 1, length - 1))
        assert tensors["input_ids"][row, 1:][mask].tolist() == completion.token_ids
        assert tensors["sampler_logps"][row][mask].tolist() == completion.logprobs
        assert not tensors["sampler_logps"][row][~mask].any()


def test_the_loss_sees_exactly_what_the_engine_sampled(make_trainer: Any) -> None:
    """The tokens are the same, and the engine's and the trainer's log-probabilities agree token by token."""
    trainer = make_trainer(max_steps=1, max_tokens=12, temperature=1.2)
    given: list[Completion] = []
    generate = trainer.engine.generate

    def kept(*args: Any) -> list[Completion]:
        given.extend(generate(*args))
        return given

    trainer.engine.generate = kept
    tensors = trainer._next_batch(0)
    mask = tensors["loss_mask"]
    assert [ids[row].tolist() for ids, row in zip(tensors["input_ids"][:, 1:], mask, strict=True)] == [
        completion.token_ids for completion in given
    ]
    assert any(completion.token_ids[-1] in trainer.engine.end_ids for completion in given)
    with torch.no_grad():
        logps = trainer.objective.logps(trainer.model, tensors["input_ids"], mask)
    torch.testing.assert_close(logps[mask], tensors["sampler_logps"][mask], atol=1e-4, rtol=1e-4)


def test_batches_ahead_are_returned_by_number_and_raise_their_errors(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    env = Environment(ROWS)
    engine = Scripted([Completion([7, end], [-1.0, -1.0], "stop")] * 4, end)
    sampler = RolloutSampler(env, engine, PromptEncoder(tokenizer))
    sampler.submit(0, env.train_rows[:1], Sampling())
    sampler.submit(1, env.train_rows[1:3], Sampling())
    assert sampler.submitted(1)
    assert not sampler.submitted(2)
    assert len(sampler.get(1)) == 2
    assert len(sampler.get(0)) == 1
    engine.generate = lambda *_: 1 / 0  # type: ignore[method-assign, assignment]
    sampler.submit(2, env.train_rows, Sampling())
    with pytest.raises(ZeroDivisionError):
        sampler.wait_idle()
    with pytest.raises(ZeroDivisionError):
        sampler.get(2)


# --- prompts


def test_rollouts_are_scored_one_batch_at_a_time(tokenizer: Any) -> None:
    """Batches sampled ahead and replacement groups are not scored at the same time, so users' rewards need not be
    thread-safe."""
    end, inside, most = tokenizer.eos_token_id, [0], [0]

    def slow(rollout: Any) -> float:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return 1.0

    env = Environment(ROWS, rewards=[slow])
    sampler = RolloutSampler(env, Scripted([Completion([end], [-1.0], "stop")] * 4, end), PromptEncoder(tokenizer))
    sampler.submit(0, env.train_rows, Sampling())
    for _ in range(3):
        sampler.sample(env.train_rows, Sampling())
    assert len(sampler.get(0)) == 4
    assert most == [1]


def test_an_answer_in_a_thinking_section_that_the_template_opened_does_not_count(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completion that ends inside the section has no answer, as if it had opened the section itself."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", template)
    texts = ["Maybe <answer>2</answer> or", "So 2.</think> <answer>2</answer>"]
    completions = [Completion(ids, [-1.0] * len(ids), "length") for ids in tokenizer(texts)["input_ids"]]
    engine = Scripted(completions, tokenizer.eos_token_id)
    env = Environment([ROWS[1]], rewards=["correctness", "think_format"])
    rollouts = RolloutSampler(env, engine, PromptEncoder(tokenizer)).sample(list(env.train_rows) * 2, Sampling())
    assert [scored.rewards for scored in rollouts.scored] == [
        {"correctness": 0, "think_format": 0}, {"correctness": 1, "think_format": 1}
    ]  # fmt: skip
    assert rollouts.rollouts[0].score.status == "no_answer"


def test_only_the_last_end_token_is_removed(tokenizer: Any) -> None:
    ids = tokenizer("a b")["input_ids"]
    assert PromptEncoder(tokenizer).decode([[*ids, ids[-1]], [*ids], []], frozenset({ids[-1]})) == [
        tokenizer.decode(ids), tokenizer.decode(ids[:-1]), ""
    ]  # fmt: skip


# --- the rows of each batch


CONFIGS = Path(__file__).parents[2] / "configs"


def order(**changes: Any) -> BatchOrder:
    return BatchOrder(**{"rows": 10, "prompts": 4, "seed": 3, **changes})


def test_batches_can_be_requested_in_any_order() -> None:
    """A resumed run, for example, starts with a later batch."""
    numbers = [5, 0, 3, 5]
    together = order()
    assert [together.batch(n) for n in numbers] == [order().batch(n) for n in numbers]


def test_fewer_rows_than_prompts_in_a_step_are_refused() -> None:
    """With too few rows, there would be no batch at all."""
    with pytest.raises(InputError, match="a step has 12 prompts, more than the 10 rows to train on"):
        order(prompts=12)


@pytest.mark.parametrize("num_iterations", [1, 2])
def test_several_epochs_lose_no_row(make_trainer: Any, num_iterations: int) -> None:
    """Each row of a complete batch is used once per epoch."""
    trainer = make_trainer(max_steps=16 * num_iterations, num_iterations=num_iterations, max_tokens=2)
    used: list[str] = []  # 32 rows, 4 per step: two epochs
    sample = trainer.sampler.sample

    def note(rows: Any, *rest: Any) -> Any:
        used.extend(row["prompt"][-1]["content"] for row in rows[::4])
        return sample(rows, *rest)

    trainer.sampler.sample = note
    trainer.train()
    assert len(used) == 64
    assert set(Counter(used).values()) == {2}
    assert trainer.state.epoch == 2


@pytest.mark.parametrize(("epochs", "iterations", "steps"), [(1, 1, 8), (2.5, 1, 20), (0.1, 1, 1), (2, 2, 32)])
def test_epochs_set_the_number_of_steps(make_trainer: Any, epochs: float, iterations: int, steps: int) -> None:
    """An epoch of 32 rows has 8 steps of 4 prompts, times the updates per batch."""
    assert make_trainer(num_train_epochs=epochs, num_iterations=iterations).args.max_steps == steps


@pytest.mark.parametrize(("more", "warmup"), [([], 0), (["training.warmup_steps=10"], 10)])
def test_epochs_of_a_config_set_the_number_of_steps(more: list[str], warmup: int) -> None:
    """An epoch of 2,000 rows has 125 steps of 16 prompts."""
    config = load_train_config(
        CONFIGS / "train" / "tiny.yaml", ["training.num_train_epochs=0.5", "training.max_new_tokens=33", *more]
    )
    training = config.training_for()
    assert (training.max_steps, training.max_tokens, training.num_train_epochs) == (63, 33, None)
    assert training.warmup_steps == warmup


def test_max_new_tokens_is_another_name_of_the_token_limit() -> None:
    assert GRPOConfig(max_new_tokens=7).max_tokens == 7
    with pytest.raises(InputError, match="max_new_tokens=-1: use max_tokens, a whole number of at least 1"):
        GRPOConfig(max_new_tokens=-1)


def test_drawing_an_order_leaves_torchs_random_numbers_alone() -> None:
    """torch's random state belongs to training and is saved in checkpoints."""
    before = torch.random.get_rng_state()
    order().batch(7)
    assert torch.equal(before, torch.random.get_rng_state())


# --- replacement of unmixed groups


def batch(name: str, *groups: str) -> Rollouts:
    """Return a batch of groups; a group such as "1001" says which of a prompt's answers are right."""
    marks = "".join(groups)
    correct = [float(mark) for mark in marks]
    rollouts = [Rollout(f"{name}{row}", f"{name}{row}", "", {}, 1, False, [row], [0.0]) for row in range(len(marks))]
    scored = [Scored(value, {"correctness": value}, {"accuracy": value}) for value in correct]
    return Rollouts(rollouts, scored, [[row] for row in range(len(marks))], 1.5)


def texts(rollouts: Rollouts) -> list[str]:
    return [rollout.text for rollout in rollouts.rollouts]


class Batches:
    """Returns the next of the given batches, and records the calls."""

    def __init__(self, *batches: Rollouts) -> None:
        self.batches, self.calls = list(batches), list[tuple[int, int]]()

    def __call__(self, round_: int, prompts: int) -> Rollouts:
        self.calls.append((round_, prompts))
        return self.batches.pop(0)


def test_mixed_groups_replace_the_others() -> None:
    """Rollouts keep all their values, and as many prompts are sampled as are expected to suffice."""
    more = Batches(batch("b", "11", "00", "10", "11"), batch("c", "01", "10", "00", "00"))
    filled, empty, metrics = GroupFilter(2, rounds=3)(batch("a", "11", "10", "00", "00"), more)
    # 3 groups are missing with 1/4 mixed, then 2 with 2/8 mixed. A round samples at most the batch's 4 prompts.
    assert more.calls == [(0, 4), (1, 4)]
    assert texts(filled) == ["a2", "a3", "b4", "b5", "c0", "c1", "c2", "c3"]
    assert filled.accuracies == filled.rewards == [1, 0, 1, 0, 0, 1, 1, 0]
    assert filled.prompt_ids == [[2], [3], [4], [5], [0], [1], [2], [3]]
    assert filled.seconds == pytest.approx(1.5)  # 2, 2 and 4 of the 8 rollouts of each batch, which took 1.5 s
    assert empty == []
    assert metrics == {"filter_groups/asked": 12, "filter_groups/mixed": 4 / 12, "filter_groups/empty": 0}


@pytest.mark.parametrize(
    ("own", "more", "asked", "mixed", "expected"),
    [
        # Fewer prompts than requested: 2 groups missing with 2/4 mixed, then with 2/5.
        (["11", "10", "00", "10"], [["00"], ["11"]], 6, 2, ["a2", "a3", "a6", "a7", "a0", "a1", "a4", "a5"]),
        (["11", "00"], [["11", "00"], ["11", "01"]], 6, 1, ["c2", "c3", "a0", "a1"]),
    ],
)
def test_unmixed_groups_fill_the_remaining_places(
    own: Any, more: Any, asked: int, mixed: int, expected: list[str]
) -> None:
    """After the last round, unmixed groups complete the batch and are listed, and only sampled prompts are counted."""
    batches = Batches(batch("b", *more[0]), batch("c", *more[1]))
    filled, empty, metrics = GroupFilter(2, rounds=2)(batch("a", *own), batches)
    assert batches.calls == [(0, len(own)), (1, len(own))]
    assert texts(filled) == expected
    assert empty == list(range(2 * mixed, 2 * len(own)))
    assert (metrics["filter_groups/asked"], metrics["filter_groups/mixed"]) == (asked, mixed / asked)


@pytest.mark.parametrize(("mark", "words"), [("11", r"accuracy 1\.00.*choose harder tasks"), ("00", "0.00.*easier")])
def test_the_third_empty_batch_in_a_row_ends_the_run(mark: str, words: str) -> None:
    filtering = GroupFilter(2, rounds=0)
    for given in (mark, mark, "10", mark, mark):
        filtering(batch("a", given, given), Batches())
    with pytest.raises(TrainingError, match=rf"removed every group from 3 batches in a row.*{words}"):
        filtering(batch("a", mark, mark), Batches())


def test_replacements_use_other_prompts_than_the_batch() -> None:
    """Repeated calls return the same rows, each round returns different rows, and no row occurs twice in a round."""
    order = BatchOrder(40, prompts=8, seed=3)
    drawn = [order.more(5, round_, 12) for round_ in range(4)]
    assert drawn == [order.more(5, round_, 12) for round_ in range(4)]
    assert len({tuple(rows) for rows in drawn}) == 4
    assert all(len(set(rows)) == 12 and not set(rows) & set(order.batch(5)) for rows in drawn)
    largest = BatchOrder(40, prompts=8, seed=2**32 - 1)
    assert len(set(largest.more(10**6, 99, 12))) == 12
    small = BatchOrder(8, prompts=8, seed=3)
    # There are no other rows, so the batch's own are used.
    assert sorted(small.more(0, 0, 4)) == sorted(set(small.more(0, 0, 4)))


@pytest.mark.slow
def test_all_trained_groups_are_mixed(make_trainer: Any, make_env: Any, tmp_path: Path) -> None:
    """Without the filter, less than 70% of the groups are mixed. Accuracy is logged before filtering."""
    mixed = {}
    for name, rounds in (("without", 0), ("with", 100)):
        fields = {"filter_groups": True, "filter_groups_rounds": rounds} if rounds else {}
        trainer = make_trainer(
            env=make_env(num_train_examples=200), model=AutoModelForCausalLM.from_pretrained(POLICY_DIR),
            max_steps=4, output_dir=str(tmp_path / name), **fields,
        )  # fmt: skip
        train(trainer, evaluation=EvaluationPlan(every=0, before=False, after=False))
        groups: dict[tuple[int, str], Counter[bool]] = {}
        for rollout in logged(tmp_path / name, "rollouts.jsonl"):
            groups.setdefault((rollout["step"], rollout["question"]), Counter())[rollout["correct"]] += 1
        mixed[name] = sum(len(group) > 1 for group in groups.values()) / len(groups)
        assert all(sum(group.values()) == 4 for group in groups.values())
    assert mixed["without"] < 0.7
    assert mixed["with"] == 1
    first = [lines[0] for lines in (logged(tmp_path / "without"), logged(tmp_path / "with"))]
    assert first[0]["accuracy"] == first[1]["accuracy"]
    assert first[0]["num_tokens"] < first[1]["num_tokens"]
    with (tmp_path / "with" / "metrics.jsonl").open() as lines:
        step = json.loads(next(lines))
    # The token counts include all sampling rounds.
    assert step["tokens_per_second"] * step["step_time"] == pytest.approx(step["num_tokens"], rel=0.01)
    assert first[1]["filter_groups/asked"] > 4
    assert first[1]["filter_groups/empty"] == 0


def test_an_environment_without_accuracy_is_refused(make_trainer: Any) -> None:
    """The error is raised when the trainer is created."""
    env = Environment([{"question": f"{n}?"} for n in range(8)], rewards=[lambda completion: 1.0])
    assert not env.has_accuracy
    with pytest.raises(InputError, match="accuracy, which this environment does not measure"):
        make_trainer(env=env, filter_groups=True)
