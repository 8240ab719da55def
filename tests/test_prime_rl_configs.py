"""Tests of the prime-rl configs without prime-rl, which check the options of rg_env's taskset.

tests/matrix/test_prime_rl.py loads the configs into prime-rl's own classes.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from rg_env.adapters.v1 import ReasoningGymTasksetConfig
from rg_env.core.config.files import leaves
from rg_env.core.data.dataset import build_splits
from rg_env.core.data.splits import Split
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.core.rewards import resolve_rewards
from rg_env.core.tasks.mixture import Mixture

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs" / "prime-rl"
FILES = sorted(CONFIGS.glob("*.toml"))
RUN: dict[str, Any] = tomllib.loads((CONFIGS / "single_node.toml").read_text())
ORCHESTRATOR: dict[str, Any] = RUN["orchestrator"]
TRAIN, EVAL = ORCHESTRATOR["train"]["source"], ORCHESTRATOR["eval"]["source"]
SOURCES = {source["name"]: source["env"]["taskset"] for source in [*TRAIN, *EVAL]}
TEMPLATE_TOKENS = 64
"""Upper bound for the tokens that a chat template adds to a system and a user message."""


def rows(taskset: dict[str, Any]) -> list[Any]:
    counts = [taskset[f"num_{split}_examples"] if taskset["split"] == split else 0 for split in ("train", "eval")]
    seeds = taskset.get("seed", 0), taskset.get("eval_seed", 0)
    train, evaluation, _ = build_splits(taskset["gym"], *counts, *seeds)
    return train or evaluation


def test_there_are_files() -> None:
    assert [path.name for path in FILES] == ["multi_node.toml", "single_node.toml"]


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_names_our_taskset_with_tasks_and_rewards_that_exist(name: str) -> None:
    taskset = SOURCES[name]
    assert taskset["id"] == "rg-env"
    assert taskset.keys() <= {"id", *ReasoningGymTasksetConfig.__annotations__}
    assert taskset["split"] in get_args(Split)
    assert f"num_{taskset['split']}_examples" in taskset, "the size of the split that it asks for"
    mixture = Mixture.parse(taskset["gym"])
    assert mixture.names == [task["name"] for task in taskset["gym"]]
    rewards = resolve_rewards(taskset["rewards"])
    assert {reward.name: reward.weight for reward in rewards}["correctness"] == 1.0


def test_evaluations_cover_trained_and_held_out_tasks() -> None:
    """Both evaluations use the evaluation split, and their reward is the accuracy."""
    trained, same, held_out = (Mixture.parse(SOURCES[name]["gym"]) for name in SOURCES)
    assert same == trained
    assert not set(held_out.names) & set(trained.names)
    assert {SOURCES[source["name"]]["split"] for source in TRAIN} == {"train"}
    for source in EVAL:
        assert SOURCES[source["name"]]["split"] == "eval"
        assert SOURCES[source["name"]]["rewards"] == {"correctness": 1.0}


def test_steps_have_whole_groups_and_no_question_is_repeated() -> None:
    for changed in [{}, tomllib.loads((CONFIGS / "multi_node.toml").read_text())["orchestrator"]]:
        values = {**ORCHESTRATOR, **changed}
        assert values["batch_size"] % values["group_size"] == 0
        questions = RUN["max_steps"] * values["batch_size"] // values["group_size"]
        assert questions <= sum(SOURCES[source["name"]]["num_train_examples"] for source in TRAIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_the_rows_can_be_drawn_and_their_prompts_leave_room_for_the_answer(name: str) -> None:
    drawn = rows(SOURCES[name])
    assert len(drawn) == SOURCES[name][f"num_{SOURCES[name]['split']}_examples"]
    sampling = ORCHESTRATOR["train" if SOURCES[name]["split"] == "train" else "eval"]["sampling"]
    room = RUN["seq_len"] - sampling["max_completion_tokens"] - TEMPLATE_TOKENS
    # With a byte-level tokenizer such as Qwen's, each token is at least one byte.
    assert max(len(f"{SYSTEM_PROMPT}{row['question']}".encode()) for row in drawn) <= room
    assert RUN["inference"]["vllm"]["max_model_len"] == RUN["seq_len"]


def test_rows_alternate_between_tasks_because_prime_rl_keeps_their_order() -> None:
    """Each task has some of the 16 questions in a step."""
    taskset = SOURCES[TRAIN[0]["name"]]
    first = [row["info"]["rg_task"] for row in rows(taskset)[:16]]
    assert set(first) == {task["name"] for task in taskset["gym"]}


def test_the_multi_node_file_contains_only_changed_values() -> None:
    before = dict(leaves(RUN))
    for path, value in leaves(tomllib.loads((CONFIGS / "multi_node.toml").read_text())):
        assert before.get(path) != value, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_head_comment_states_hardware_commands_and_untested_parts(path: Path) -> None:
    head = "".join(line for line in path.read_text().splitlines(True) if line.startswith("#")).split("\n\n")[0]
    for text in ("Hardware:", "uv run --no-sync rl @", "--dry-run", "not been run", "559b44772e47 (2026-08-21)"):
        assert text in head
    for named in re.findall(r"(?:configs|tests)/[\w/-]+\.(?:toml|py)", head):
        assert (ROOT / named).is_file()
