"""The entries of `evaluation.tasks`: how many questions each asks, and that none of them is trained on."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rg_env import ReasoningGym
from rg_env.core.data.splits import split_of
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import load_table
from rg_env.inference.models import Policy
from rg_env.training.config.load import load_train_config
from rg_env.training.config.schema import TrainConfig
from rg_env.training.curriculum import Curriculum
from rg_env.training.from_config import evaluation_plan

PAPER = Path(__file__).parents[2] / "configs" / "train" / "paper"
POLICY = Policy(None, None, "none")  # type: ignore[arg-type]


def config(**sections: Any) -> TrainConfig:
    return TrainConfig.model_validate_json(json.dumps({"model": {"name": "tiny"}, **sections}))


@given(
    numbers=st.lists(st.none() | st.integers(1, 10**6), min_size=1, max_size=40),
    default=st.integers(1, 1000),
    labels=st.lists(st.integers(1, 10**6), max_size=3),
)
def test_each_entry_has_exactly_its_number(numbers: list[int | None], default: int, labels: list[int]) -> None:
    """Whatever the others have, though the held-out tasks share an environment."""
    names = sorted(set(load_table()) - {"leg_counting"})[: len(numbers)]
    tasks: dict[str, Any] = {
        name: {} if number is None else {"num_examples": number} for name, number in zip(names, numbers, strict=True)
    }
    tasks |= {f"label{i}": {"task": "leg_counting", "num_examples": number} for i, number in enumerate(labels)}
    whole = config(tasks={"leg_counting": {}}, evaluation={"tasks": tasks, "num_held_out_examples": default})
    (_, held_out), *others = whole.evaluation_environments()
    mixture = Mixture.parse(held_out["gym"])
    counts = dict(zip(mixture.names, mixture.counts(held_out["num_eval_examples"]), strict=True))
    assert counts == {name: number or default for name, number in zip(names, numbers, strict=True)}
    assert [(label, other["num_eval_examples"]) for label, other in others] == [
        (f"label{i}", number) for i, number in enumerate(labels)
    ]


def test_the_plan_of_a_config_holds_these_rows() -> None:
    """Held-out tasks share one environment, with all prompt and grading settings; each label has its own."""
    whole = config(
        tasks={"spell_backward": {}},
        grading="upstream",
        prompt={"system_prompt": "Spell!", "placement": "user"},
        evaluation={
            "tasks": {
                "lcm": {"num_examples": 3},
                "words_4": {"task": "spell_backward", "config": {"min_word_len": 4, "max_word_len": 4}},
                "maze": {"level": 0},
                "words_low": {"task": "spell_backward", "levels": {"word_len": 0}, "num_examples": 2},
                "gcd": {"task": "gcd", "num_examples": 1},
            },
            "num_held_out_examples": 5,
            "rollouts_per_example": 3,
            "every": 7,
        },
    )
    plan = evaluation_plan(whole, POLICY)
    assert (plan.every, plan.rollouts_per_example, plan.env) == (7, 3, None)
    (held_out,) = plan.held_out
    assert Counter(row["info"]["rg_task"] for row in held_out.eval_rows) == {"lcm": 3, "maze": 5, "gcd": 1}
    assert list(plan.labelled) == ["words_4", "words_low"]
    lengths = {label: [len(row["answer"]) for row in env.eval_rows] for label, env in plan.labelled.items()}
    assert lengths == {"words_4": [4] * 5, "words_low": [3] * 2}
    for env in (held_out, *plan.labelled.values()):
        assert not env.train_rows
        assert env.grading == "upstream"
        assert all(row["prompt"][0]["content"].startswith("Spell!") for row in env.eval_rows)


def test_questions_at_other_difficulties_are_never_trained_on() -> None:
    """They come from the evaluation partition: neither do the training rows hold one, nor what a curriculum draws later
    at the very same difficulty."""
    of_three = {"min_word_len": 3, "max_word_len": 3}
    whole = config(
        seed=7,
        tasks={"spell_backward": {}},
        splits={"num_train_examples": 1500, "num_eval_examples": 50},
        curriculum={"tasks": {"spell_backward": {}}},
        evaluation={
            "tasks": {
                "words_3": {"task": "spell_backward", "config": of_three},
                "words_4": {"task": "spell_backward", "config": {"min_word_len": 4, "max_word_len": 4}},
            },
            "num_held_out_examples": 100,
        },
    )
    plan = evaluation_plan(whole, POLICY)
    infos = [row["info"] for env in plan.labelled.values() for row in env.eval_rows]
    asked = {row["question"] for env in plan.labelled.values() for row in env.eval_rows}
    assert len(asked) == 200
    assert {split_of(info["problem"]) for info in infos} == {"eval"}
    env = ReasoningGym(gym=whole.gym, **whole.environment_arguments())
    assert not asked & {row["question"] for row in env.train_rows}
    assert whole.curriculum
    curriculum = Curriculum(whole.curriculum, env, whole.seed, gym=whole.gym)
    rows = env.train_rows[:16]
    drawn = {row["question"] for batch in range(40) for row in curriculum.replace(batch, rows)}
    assert len(drawn) == 640
    assert {len(question.rpartition(": ")[2]) for question in drawn} == {3}
    assert not asked & drawn


def test_the_papers_curricula_are_measured_at_its_difficulties() -> None:
    """On 50 questions each, with a curriculum and without."""
    for task, of_entry, expected in (
        ("spell_backward", lambda entry: entry["metadata"]["word_len"], {"_4": {4}, "_6": {6}}),
        ("mini_sudoku", lambda entry: sum(row.count(0) for row in entry["metadata"]["puzzle"]), {"_8_10": {8, 9, 10}}),
    ):
        for end in ("", "_fixed"):
            plan = evaluation_plan(load_train_config(PAPER / f"curriculum_{task}{end}.yaml"), POLICY)
            assert plan.held_out == ()
            assert plan.rollouts_per_example == 3
            found = {
                label: [json.loads(row["info"]["entry"]) for row in env.eval_rows]
                for label, env in plan.labelled.items()
            }
            assert {label: {of_entry(e) for e in entries} for label, entries in found.items()} == {
                f"{task}{label}": values for label, values in expected.items()
            }
            assert {len(entries) for entries in found.values()} == {50}
    plan = evaluation_plan(load_train_config(PAPER / "curriculum_count_primes_fixed.yaml"), POLICY)
    assert [len(env.eval_rows) for env in plan.labelled.values()] == [50]
