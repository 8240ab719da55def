"""`GRPOConfig`: names, and batches that mean the same on any number of processes."""

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.errors import InputError
from rg_env.training.algorithms.advantages import group_advantages
from rg_env.training.config.grpo import ELSEWHERE, GRPOConfig, batch_problems, check_batch


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lerning_rate": 1e-5}, "lerning_rate.*learning_rate"),
        ({"num_generation": 4}, "num_generation.*num_generations"),
        ({"rollouts_per_stp": 4}, "rollouts_per_stp.*rollouts_per_step"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        GRPOConfig(**fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_names_of_other_trainers_are_refused_with_what_replaces_them(name: str) -> None:
    assert name not in GRPOConfig.model_fields
    with pytest.raises(InputError) as caught:
        GRPOConfig(**{name: 1})
    assert str(caught.value).startswith(f"{name}=1: ")
    assert ELSEWHERE[name] in str(caught.value)


def test_what_replaces_them_exists() -> None:
    """Every field and section that the hints name."""
    from rg_env.training.config.schema import TrainConfig

    sections = {name: field.annotation for name, field in TrainConfig.model_fields.items()}
    named = {name for text in ELSEWHERE.values() for name in re.findall(r"[a-z_]*_[a-z_]+", text)}
    everywhere = {
        field for section in sections.values() for field in getattr(section, "model_fields", {})
    } | {*GRPOConfig.model_fields, *sections, "vllm", "mixed_precision"}  # fmt: skip
    assert named <= everywhere


def test_all_that_is_wrong_is_reported() -> None:
    with pytest.raises(InputError) as caught:
        GRPOConfig(temperature=-1, max_steps=0, logging_steps=10)
    for name in ("temperature", "max_steps", "logging_steps"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss_type": "ppo"}, "loss_type.*'ppo'.*bnpo.*dapo"),
        ({"scale_rewards": "all"}, "scale_rewards.*'all'.*group.*none"),
        ({"optim": "lion"}, "optim.*'lion'.*adamw_torch"),
        ({"kl_reference": "previous"}, "kl_reference='previous': beta is 0: there is no KL term"),
        ({"epsilon": 0.3, "epsilon_high": 0.2}, r"epsilon_high=0.2: must be at least epsilon \(0.3\)"),
        ({"off_policy_mask_threshold": -1.0}, "off_policy_mask_threshold"),
        ({"filter_groups_rounds": 0}, "filter_groups_rounds"),
        ({"max_prompt_length": 0}, "max_prompt_length"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("inf")}, "learning_rate"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"num_generations": 1}, "num_generations"),
    ],
)
def test_values_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    """With their name; a prompt length of 0 must not be taken for none."""
    with pytest.raises(InputError, match=message) as caught:
        GRPOConfig(**fields)
    assert "\n" not in str(caught.value)


sizes = st.integers(1, 64)


@settings(max_examples=300)
@given(rollouts=st.integers(1, 300), group=st.integers(2, 16), micro=sizes, processes=st.integers(1, 8))
def test_what_does_not_divide_is_refused_with_sizes_that_do(
    rollouts: int, group: int, micro: int, processes: int
) -> None:
    """Every suggestion works as it is, or with a micro-batch that is suggested next."""
    fields: dict[str, Any] = {
        "rollouts_per_step": rollouts, "num_generations": group, "per_device_train_batch_size": micro
    }  # fmt: skip
    works = rollouts % group == 0 and rollouts % (micro * processes) == 0
    if works:
        args = GRPOConfig(**fields)
        assert args.accumulation(processes) * micro * processes == rollouts
        assert args.prompts_per_step * group == rollouts
        return
    with pytest.raises(InputError) as caught:
        check_batch(GRPOConfig(**fields), processes)
    suggestions = followed(fields, str(caught.value))
    assert suggestions
    for changed in suggestions:
        for key, text in batch_problems(GRPOConfig(**changed), processes):
            assert key == "per_device_train_batch_size"
            for once_more in followed(changed, f"{key}: {text}"):
                check_batch(GRPOConfig(**once_more), processes)


def followed(fields: dict[str, Any], message: str) -> list[dict[str, Any]]:
    """The fields as each suggestion of a message has them."""
    name = message.partition(":")[0]
    values = [int(value) for value in re.findall(r"\d+", message.rpartition("; try ")[2])]
    assert values
    assert fields[name] not in values
    return [{**fields, name: value} for value in values]


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_step_is_the_same_on_any_number_of_processes(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """The processes' parts make the batch, each rollout once; every token has the same weight in "dapo"'s loss, and
    advantages are those of whole groups, also where a group is split between processes."""
    trainer = make_trainer(
        rollouts_per_step=24, num_generations=8, per_device_train_batch_size=4, loss_type="dapo", max_tokens=6
    )
    batch = trainer._next_batch(0)
    whole = {
        tuple(row): None for row in zip(map(tuple, batch.prompt_ids), map(tuple, batch.completion_ids), strict=True)
    }
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", processes)
    seen, weights, advantages = [], 0.0, []
    for process in range(processes):
        monkeypatch.setattr(type(trainer.accelerator), "process_index", process)
        parts = trainer._split(batch)
        assert [len(part["input_ids"]) for part in parts] == [4] * (24 // 4 // processes)
        for part in parts:
            tokens = part["loss_mask"].sum()
            weights += float(tokens / part["batch_tokens"][0]) / len(parts) / processes
            seen += [tuple(row[row != trainer._pad_token()].tolist()) for row in part["input_ids"]]
            advantages += part["advantages"].tolist()
    assert weights == pytest.approx(1.0)
    assert len(seen) == 24
    assert set(seen) == {
        tuple(token for token in (*prompt, *completion) if token != trainer._pad_token())
        for prompt, completion in whole
    }

    assert sorted(advantages) == sorted(group_advantages(torch.tensor(batch.rewards), 8, "group").tolist())
