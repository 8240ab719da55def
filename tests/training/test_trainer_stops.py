"""Where the trainer stops: errors that end the run, settings it refuses, servers that do not answer."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import verifiers as vf
from datasets import Dataset
from verifiers.trainers import GRPOTrainer as ParentTrainer

from rg_env.core.prompts import require_chat_template
from rg_env.errors import EngineError, InputError, RewardError, TrainingError
from rg_env.training import rollouts
from rg_env.training.seams import no_weight_client

# --- errors end the run


def failing_env(make_env: Any, reward: Any) -> Any:
    env = make_env()
    return vf.SingleTurnEnv(dataset=env.dataset, eval_dataset=env.eval_dataset, rubric=vf.Rubric(funcs=[reward]))


def raising(completion: Any, answer: str) -> float:
    raise KeyError("no such key")


def not_a_number(completion: Any, answer: str) -> float:
    return float("nan")


@pytest.mark.parametrize("reward", [raising, not_a_number])
def test_a_failing_reward_ends_the_run_and_is_named(make_trainer: Any, make_env: Any, reward: Any) -> None:
    """In any environment; verifiers' rubric logs it and goes on with 0.0."""
    with pytest.raises(RewardError, match=reward.__name__):
        make_trainer(env=failing_env(make_env, reward)).train()


def test_an_engine_error_ends_the_run(make_trainer: Any) -> None:
    """With that error, at once, not with a time-out."""
    trainer = make_trainer()
    trainer.sampler.engine._forward = lambda *args: 1 / 0
    start = time.monotonic()
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        trainer.train()
    assert time.monotonic() - start < 20


def test_the_parent_waits_for_a_batch_that_failed(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the parent's generator the same error is lost: the run ends at the generation time-out only."""
    from verifiers.trainers.async_batch_generator import AsyncBatchGenerator

    trainer = make_trainer(async_generation_timeout=3)
    trainer.sampler.engine._forward = lambda *args: 1 / 0
    monkeypatch.setattr("openai.AsyncOpenAI", lambda **kwargs: trainer.sampler.client())
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    monkeypatch.setattr(type(trainer), "_prepare_inputs", ParentTrainer._prepare_inputs)
    trainer.async_generator = AsyncBatchGenerator(
        env=trainer.env,
        client_config=trainer.client_config,
        model_name=trainer._get_model_name(),
        sampling_args=trainer._get_sampling_args(),
        num_batches_ahead=0,
        generation_timeout=3,
    )
    with pytest.raises(TimeoutError):
        trainer.train()


def test_a_batch_that_never_comes_is_an_error(make_trainer: Any) -> None:
    """The time-out names what it waited for."""
    trainer = make_trainer()
    with pytest.raises(TrainingError, match=r"batch 0 was not there after .*in a config engine\.generation_timeout"):
        trainer.async_generator.get_batch(0, timeout=0.05)


def test_a_batch_does_not_lose_its_time_to_those_before_it(make_trainer: Any) -> None:
    """Prompts that fill a batch wait behind the batch that was asked for ahead: the time-out is of each."""
    generator = make_trainer().async_generator
    for number in range(3):
        result = SimpleNamespace(batch_id=number)
        threading.Timer(0.4 * (number + 1), generator.result_queue.put, (result,)).start()
    assert generator.get_batch(2, timeout=1.0).batch_id == 2
    with pytest.raises(TrainingError, match=r"batch 3 was not there after 0\.05 s"):
        generator.get_batch(3, timeout=0.05)


def test_an_evaluation_does_not_wait_for_a_server_that_hangs(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests have long deadlines and are tried again: the server's health ends the wait, as it does for a batch."""
    monkeypatch.setattr(rollouts, "HEALTH_EVERY_S", 0.02)
    monkeypatch.setattr(rollouts, "SICK_S", 0.1)
    generator = make_trainer().async_generator
    generator._health = lambda: "it gives no answer"
    with pytest.raises(TrainingError, match="the evaluation will not come: it gives no answer"):
        generator.run_job(lambda client: asyncio.sleep(20))
    generator.stop()
    assert not generator.started


# --- bad input


def test_prompts_too_long_are_an_error(make_trainer: Any) -> None:
    """The parent drops them. The remedy has the names of a config and of `GRPOConfig`."""
    words = (
        r"32 of 32 training prompts are longer than max_prompt_length=8 .* longest has .*in a config "
        r"training\.max_prompt_length; in GRPOConfig max_seq_len too"
    )
    with pytest.raises(InputError, match=words):
        make_trainer(max_prompt_length=8)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_prompt_length", 0),
        ("max_tokens", 0),
        ("max_seq_len", -1),
        ("learning_rate", 0.0),
        ("learning_rate", float("inf")),
        ("temperature", -0.1),
        ("temperature", float("nan")),
    ],
)
def test_numbers_that_cannot_be_are_refused(make_args: Any, field: str, value: float) -> None:
    """With name and value; a prompt length of 0 must not be taken for none."""
    with pytest.raises(InputError, match=f"{field}={value}: must be"):
        make_args(**{field: value})


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("hello", "leaves out the question"),
        ("{{ raise_exception('no\nway') }}", "fails on a plain question: no way"),
        ("{% if %}", "fails on a plain question"),
    ],
)
def test_templates_that_cannot_ask_are_refused(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, template: str, words: str
) -> None:
    """Wherever one is needed, by one line."""
    monkeypatch.setattr(tokenizer, "chat_template", template)
    with pytest.raises(InputError, match=words) as caught:
        require_chat_template(tokenizer)
    assert "\n" not in str(caught.value)


def test_embedded_engine_refuses_asynchronous_batches(make_trainer: Any) -> None:
    """It samples from the model that is being trained."""
    with pytest.raises(InputError, match="num_batches_ahead=1"):
        make_trainer(num_batches_ahead=1)


def test_embedded_engine_refuses_zero3(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards cannot generate."""
    monkeypatch.setattr("rg_env.training.checks.is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(InputError, match="ZeRO-3"):
        make_trainer()


def test_batches_that_make_no_groups_are_refused(make_args: Any) -> None:
    """With the nearest valid values."""
    with pytest.raises(
        InputError, match=r"num_generations=5 does not divide: nearest per_device_train_batch_size: 5, 10"
    ):
        make_args(num_generations=5)


def test_template_without_a_system_role_gets_the_prompt_in_the_question(
    make_trainer: Any, make_env: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Gemma's: the system prompt stands before the question, in training and evaluation rows."""
    refuse = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", refuse + tokenizer.chat_template)
    env = make_env()
    make_trainer(env=env)
    for dataset in (env.dataset, env.eval_dataset):
        (message,) = dataset[0]["prompt"]
        assert message["role"] == "user"
        assert message["content"].startswith("Think step by step")


def test_the_parent_drops_long_prompts_in_silence(make_env: Any, make_args: Any, model: Any, tokenizer: Any) -> None:
    """Where ours raises: with a limit between the shortest and the longest prompt, it trains on fewer."""
    env = make_env()
    lengths = sorted(
        len(ids) for ids in tokenizer.apply_chat_template(list(env.dataset["prompt"]), add_generation_prompt=True)
    )
    limit = lengths[len(lengths) // 2]
    assert lengths[-1] > limit
    with no_weight_client():
        parent = ParentTrainer(model, env, make_args(max_prompt_length=limit, per_device_train_batch_size=4), tokenizer)
    assert len(parent.train_dataset) < len(env.dataset)


def test_plain_completions_are_refused_by_the_embedded_engine(make_trainer: Any) -> None:
    """It speaks chat; the vLLM engine takes both."""
    rows = Dataset.from_list([{"prompt": f"{i} + {i} =", "answer": str(2 * i)} for i in range(16)])
    env = vf.SingleTurnEnv(dataset=rows, message_type="completion", rubric=vf.Rubric())
    with pytest.raises(InputError, match="speaks chat only"):
        make_trainer(env=env)


def test_long_evaluation_prompts_are_an_error_too(make_trainer: Any, make_env: Any) -> None:
    """Before anything runs."""
    env = make_env()
    long = Dataset.from_list([{"question": "legs " * 200, "answer": "4"}])
    env = vf.SingleTurnEnv(dataset=env.dataset, eval_dataset=long, rubric=vf.Rubric())
    with pytest.raises(InputError, match="1 of 1 evaluation prompts are longer"):
        make_trainer(env=env)


def test_a_generation_batch_of_its_own_size(make_args: Any) -> None:
    """Is what has to hold whole groups."""
    assert make_args(generation_batch_size=16, num_generations=16).num_generations == 16
    with pytest.raises(InputError, match="generation_batch_size=16 is no multiple of num_generations=5"):
        make_args(generation_batch_size=16, num_generations=5)
