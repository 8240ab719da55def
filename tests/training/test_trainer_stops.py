"""Errors that end a run, and the settings and prompts that a trainer refuses."""

import copy
import time
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.environment import Environment
from rg_env.errors import EngineError, InputError
from rg_env.inference.chat_templates import require_chat_template
from rg_env.training import EngineConfig, EvaluationPlan, GRPOTrainer, train

ROWS = [{"question": f"{i} + {i} =", "answer": str(2 * i)} for i in range(16)]

# --- errors end the run


def test_an_engine_error_ends_the_run(make_trainer: Any) -> None:
    """The error ends the run at once, and the next run can sample again."""
    trainer = make_trainer()
    forward = trainer.engine._forward
    trainer.engine._forward = lambda *args: 1 / 0
    start = time.monotonic()
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        trainer.train()
    assert time.monotonic() - start < 100
    assert trainer.state.global_step == 0
    trainer.engine._forward = forward
    trainer.train()
    assert trainer.state.global_step == 2


# --- bad input


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_prompt_length": 8}, r"32 of 32 training prompts .* max_prompt_length=8 tokens .*longest has \d+"),
        ({"env": Environment([*ROWS, {"question": "legs " * 200, "answer": "4"}])}, "1 of 17 training prompts"),
        ({"env": Environment(ROWS, [{"prompt": "legs " * 200, "answer": "4"}])}, "1 of 1 evaluation prompts"),
        ({"env": Environment([], ROWS)}, "no training rows"),
        ({"engine": EngineConfig(num_batches_ahead=1)}, r"engine\.num_batches_ahead"),
        ({"env": 3}, "env must be an rg_env ReasoningGym or Environment"),
        ({"engine": "vlm"}, r"EngineConfig\.kind='vlm': must be .*'vllm'"),
    ],
)
def test_invalid_arguments_of_the_trainer_are_refused(
    make_trainer: Any, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    """The error is raised before anything is written."""
    with pytest.raises(InputError, match=words):
        make_trainer(**options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("hello", "omits the question"),
        ("{{ raise_exception('no\nway') }}", "fails on a plain question: no way"),
        ("{% if %}", "fails on a plain question"),
    ],
)
def test_unusable_chat_templates_are_refused(tokenizer: Any, template: str, words: str) -> None:
    """The error is one line."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=words) as caught:
        require_chat_template(tokenizer)
    assert "\n" not in str(caught.value)


def test_a_template_without_a_system_role_gets_the_prompt_in_the_question(
    model: Any, make_env: Any, make_args: Any, tokenizer: Any
) -> None:
    """With a template like Gemma's, the system prompt precedes the question in the sampled and trained tokens."""
    refuse = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = refuse + tokenizer.chat_template
    trainer = GRPOTrainer(model, make_env(), make_args(max_steps=1, max_tokens=2), tokenizer)
    trainer.train()
    system, question = (message["content"] for message in trainer.rollouts.rollouts[0].prompt)
    text = tokenizer.decode(trainer.rollouts.prompt_ids[0])
    assert text.index(system[:20]) < text.index(question[:20])
    assert text.startswith("<|im_start|>user")


def test_prompts_have_the_variables_of_the_chat_template(
    model: Any, make_env: Any, make_args: Any, tokenizer: Any
) -> None:
    """The environment's variables, in the sampled and trained tokens."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{{ mark }}" + tokenizer.chat_template
    env = make_env(chat_template_kwargs={"mark": "7"})
    trainer = GRPOTrainer(model, env, make_args(max_steps=1, max_tokens=2), tokenizer)
    trainer.train()
    assert tokenizer.decode(trainer.rollouts.prompt_ids[0]).startswith("7<|im_start|>")


def test_text_prompts_are_continued_as_they_are(make_trainer: Any, tokenizer: Any) -> None:
    """Prompts of a base model are not wrapped in a chat template."""
    env = Environment([{"prompt": f"{i} + {i} =", "answer": str(2 * i)} for i in range(16)])
    trainer = make_trainer(env=env, max_steps=1, max_tokens=4)
    trainer.train()
    prompts = {tuple(tokenizer(row["prompt"])["input_ids"]) for row in env.train_rows}
    assert {tuple(ids) for ids in trainer.rollouts.prompt_ids} <= prompts


def test_an_interrupt_cancels_the_batch_ahead(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run does not wait for the end of its generation, and a later run can generate."""
    trainer, calls = make_trainer(max_steps=1, max_tokens=2), list[str]()
    for owner, name in ((trainer.engine, "cancel"), (trainer.sampler, "stop"), (trainer.engine, "resume")):
        monkeypatch.setattr(owner, name, lambda name=name: calls.append(name))

    def interrupt(part: Any) -> None:
        raise KeyboardInterrupt

    trainer._loss = interrupt
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert calls == ["cancel", "stop", "resume"]


def test_gradients_of_an_interrupted_step_are_discarded(make_trainer: Any) -> None:
    """After an interrupt between two micro-batches, the next `train` starts without their gradients."""
    trainer = make_trainer(max_steps=1)
    loss, calls = trainer._loss, []

    def breaks_off(part: Any) -> Any:
        calls.append(part)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return loss(part)

    trainer._loss = breaks_off
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert any(parameter.grad is not None for parameter in trainer.model.parameters())
    trainer._begin(None)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_failure_in_the_first_step_leaves_no_checkpoint(make_trainer: Any, tmp_path: Path) -> None:
    """No checkpoint is saved if nothing was trained, because a run could not resume from step 0."""
    trainer = make_trainer()

    def fails(*args: Any) -> Any:
        raise EngineError("the server is gone")

    trainer._next_batch = fails
    with pytest.raises(EngineError, match="the server is gone"):
        train(trainer, evaluation=EvaluationPlan(before=True, after=False, every=0))
    assert (tmp_path / "run" / "eval_results" / "eval_step_0.json").exists()
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    assert train(make_trainer(), evaluation=EvaluationPlan(every=0), resume="auto")["steps"] == 2
