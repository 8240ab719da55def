"""Groups that teach nothing are replaced by others."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from run_metrics import logged
from transformers import AutoModelForCausalLM

from rg_env.core.environment import Environment, Scored
from rg_env.core.grading.scoring import Rollout
from rg_env.errors import InputError, TrainingError
from rg_env.tiny import POLICY_DIR
from rg_env.training import EvaluationPlan, train
from rg_env.training.rollouts import BatchOrder, GroupFilter, Rollouts


def batch(name: str, *groups: str) -> Rollouts:
    """A batch of groups such as "1001": which of a prompt's answers are right."""
    marks = "".join(groups)
    correct = [float(mark) for mark in marks]
    rollouts = [Rollout(f"{name}{row}", f"{name}{row}", "", {}, 1, False, [row], [0.0]) for row in range(len(marks))]
    scored = [Scored(value, {"correctness": value}, {"accuracy": value}) for value in correct]
    return Rollouts(rollouts, scored, [[row] for row in range(len(marks))], 1.5)


def texts(found: Rollouts) -> list[str]:
    return [rollout.text for rollout in found.rollouts]


class Batches:
    """Returns the next of the given batches, and keeps the calls."""

    def __init__(self, *batches: Rollouts) -> None:
        self.batches, self.calls = list(batches), list[tuple[int, int]]()

    def __call__(self, round_: int, prompts: int) -> Rollouts:
        self.calls.append((round_, prompts))
        return self.batches.pop(0)


def test_mixed_groups_replace_the_others() -> None:
    """Rollouts keep all their values; as many prompts are sampled as are expected to suffice."""
    more = Batches(batch("b", "11", "00", "10", "11"), batch("c", "01", "10", "00", "00"))
    filtered = GroupFilter(2, rounds=3)(batch("a", "11", "10", "00", "00"), more)
    assert more.calls == [(0, 4), (1, 4)]  # 3 missing at a share of 1/4, then 2 at 2/8: 4 at most
    assert texts(filtered.batch) == ["a2", "a3", "b4", "b5", "c0", "c1", "c2", "c3"]
    assert filtered.batch.accuracies == filtered.batch.rewards == [1, 0, 1, 0, 0, 1, 1, 0]
    assert filtered.batch.prompt_ids == [[2], [3], [4], [5], [0], [1], [2], [3]]
    assert filtered.batch.seconds == pytest.approx(1.5)  # 2, 2 and 4 of 8 rollouts, each batch 1.5 s
    assert (filtered.prompted, filtered.mixed, filtered.empty) == (12, 4, [])
    assert filtered.metrics() == {"filter_groups/asked": 12, "filter_groups/mixed": 4 / 12, "filter_groups/empty": 0}


def test_prompts_that_do_not_exist_do_not_count() -> None:
    """There may be fewer other rows than requested: only sampled ones decide how many more to sample."""
    more = Batches(batch("b", "00"), batch("c", "11"))
    filtered = GroupFilter(2, rounds=2)(batch("a", "11", "10", "00", "10"), more)
    assert more.calls == [(0, 4), (1, 4)]  # 2 missing at a share of 2/4, then at 2/5
    assert (filtered.prompted, filtered.mixed) == (6, 2)


def test_places_left_over_are_empty() -> None:
    """After the last round, groups of the batch fill it, and are named."""
    more = Batches(batch("b", "11", "00"), batch("c", "11", "01"))
    filtered = GroupFilter(2, rounds=2)(batch("a", "11", "00"), more)
    assert texts(filtered.batch) == ["c2", "c3", "a0", "a1"]
    assert filtered.empty == [2, 3]


@pytest.mark.parametrize(("mark", "words"), [("11", r"accuracy 1\.00.*choose harder tasks"), ("00", "0.00.*easier")])
def test_the_third_empty_batch_in_a_row_ends_the_run(mark: str, words: str) -> None:
    filtering = GroupFilter(2, rounds=0)
    for given in (mark, mark, "10", mark, mark):
        filtering(batch("a", given, given), Batches())
    with pytest.raises(TrainingError, match=rf"left nothing of 3 batches.*{words}"):
        filtering(batch("a", mark, mark), Batches())


def test_other_prompts_than_the_batchs_are_sampled() -> None:
    """The same ones on every call, others each round, and none twice."""
    order = BatchOrder(40, prompts=8, seed=3)
    drawn = [order.more(5, round_, 12) for round_ in range(4)]
    assert drawn == [order.more(5, round_, 12) for round_ in range(4)]
    assert len({tuple(rows) for rows in drawn}) == 4
    assert all(len(set(rows)) == 12 and not set(rows) & set(order.batch(5)) for rows in drawn)
    largest = BatchOrder(40, prompts=8, seed=2**32 - 1)
    assert len(set(largest.more(10**6, 99, 12))) == 12
    small = BatchOrder(8, prompts=8, seed=3)
    assert sorted(small.more(0, 0, 4)) == sorted(set(small.more(0, 0, 4)))  # no others: the batch's own


@pytest.mark.slow
def test_all_trained_groups_are_mixed(make_trainer: Any, make_env: Any, tmp_path: Path) -> None:
    """Without the filter half of the groups of this run are not. Accuracy is logged before filtering."""
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
    assert step["tokens_per_second"] * step["step_time"] == pytest.approx(step["num_tokens"], rel=0.01)  # of all rounds
    assert first[1]["filter_groups/asked"] > 4
    assert first[1]["filter_groups/empty"] == 0


def test_an_environment_without_accuracy_is_refused(make_trainer: Any) -> None:
    """In an environment without accuracy: reported when the trainer is made."""
    env = Environment([{"question": f"{n}?"} for n in range(8)], rewards=[lambda completion: 1.0])
    assert not env.has_accuracy
    with pytest.raises(InputError, match="accuracy, which this environment does not measure"):
        make_trainer(env=env, filter_groups=True)
