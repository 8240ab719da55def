"""Where the trainer stops: errors that end the run, settings it refuses, prompts that cannot be asked."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rg_env.core.environment import Environment
from rg_env.core.prompts import require_chat_template
from rg_env.errors import EngineError, InputError, RefusedError, RewardError, ServerError, TrainingError
from rg_env.inference.protocol import Completion, Sampling
from rg_env.inference.vllm.client import VllmServer
from rg_env.training import EngineConfig, EvaluationPlan, train, vllm_engine
from rg_env.training.vllm_engine import Vllm

ROWS = [{"question": f"{i} + {i} =", "answer": str(2 * i)} for i in range(16)]

# --- errors end the run


def raising(completion: Any, answer: str) -> float:
    raise KeyError("no such key")


def not_a_number(completion: Any, answer: str) -> float:
    return float("nan")


@pytest.mark.parametrize("reward", [raising, not_a_number])
def test_a_failing_reward_ends_the_run_and_is_named(make_trainer: Any, reward: Any) -> None:
    """It never counts as 0."""
    with pytest.raises(RewardError, match=reward.__name__):
        make_trainer(env=Environment(ROWS, rewards=[reward])).train()


def test_an_engine_error_ends_the_run(make_trainer: Any) -> None:
    """With that error, at once, not with a time-out; and the next run samples again."""
    trainer = make_trainer()
    forward = trainer.engine.engine._forward
    trainer.engine.engine._forward = lambda *args: 1 / 0
    start = time.monotonic()
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        trainer.train()
    assert time.monotonic() - start < 20
    assert trainer.state.global_step == 0
    trainer.engine.engine._forward = forward
    trainer.train()
    assert trainer.state.global_step == 2


class Server(VllmServer):
    """A server that answers with one completion after `seconds`, and reports `problem` of its health."""

    def __init__(self, seconds: float, problem: str | None = None, failures: int = 0, error: Any = ServerError) -> None:
        super().__init__("127.0.0.1", 9)
        self.seconds, self.problem, self.failures, self.asked = seconds, problem, failures, 0
        self.done, self.error = threading.Event(), error

    def complete(self, *args: Any) -> list[Completion]:
        self.asked += 1
        self.done.wait(self.seconds)
        if self.asked <= self.failures:
            raise self.error("it gives 503")
        return [Completion([5], [-1.0], "stop")]

    def health_problem(self, timeout_s: float) -> str | None:
        return self.problem


def remote(server: Server, **config: Any) -> Vllm:
    """The engine of a server, without the connection that its constructor makes."""
    engine = Vllm.__new__(Vllm)
    engine.server, engine.model_name, engine._config = server, "m", EngineConfig(kind="vllm", **config)
    return engine


def test_completions_that_never_come_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out names its setting."""
    monkeypatch.setattr(vllm_engine, "HEALTH_EVERY_S", 0.02)
    server = Server(20)
    with pytest.raises(TrainingError, match=r"completions were not there after 0\.1 s.*engine\.generation_timeout"):
        remote(server, generation_timeout=0.1).generate([[1]], Sampling())
    server.done.set()


def test_a_server_that_hangs_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its health does, long before the deadline of a batch."""
    monkeypatch.setattr(vllm_engine, "HEALTH_EVERY_S", 0.02)
    monkeypatch.setattr(vllm_engine, "SICK_S", 0.1)
    server = Server(20, "it gives no answer")
    start = time.monotonic()
    with pytest.raises(TrainingError, match=r"completions will not come: .*it gives no answer, for 0\.1 s"):
        remote(server).generate([[1]], Sampling())
    assert time.monotonic() - start < 5
    server.done.set()


@pytest.mark.parametrize("failures", [2, 99])
def test_a_request_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    """A few times; then the run ends with what the server said."""
    monkeypatch.setattr(vllm_engine.time, "sleep", lambda seconds: None)
    server = Server(0, failures=failures)
    if failures == 2:
        assert remote(server).generate([[1]], Sampling())[0].token_ids == [5]
        assert server.asked == 3
        return
    with pytest.raises(TrainingError, match="sampling failed after 5 attempts: it gives 503"):
        remote(server).generate([[1]], Sampling())
    assert server.asked == vllm_engine.RETRIES + 1


def test_a_refused_request_is_not_tried_again() -> None:
    """The server would refuse it again."""
    server = Server(0, failures=99, error=RefusedError)
    with pytest.raises(TrainingError, match="sampling failed after 1 attempts: it gives 503"):
        remote(server).generate([[1]], Sampling())
    assert server.asked == 1


def test_a_request_without_an_answer_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C, say."""
    monkeypatch.setattr(vllm_engine, "HEALTH_EVERY_S", 0.01)
    server = Server(20)
    with pytest.raises(TrainingError):
        remote(server, generation_timeout=0.02).generate([[1]], Sampling())
    waiting = [thread for thread in threading.enumerate() if thread.name == "rg-env-vllm"]
    assert waiting
    assert all(thread.daemon for thread in waiting)
    server.done.set()


@pytest.mark.parametrize("difference", [0.02, float("nan")])
def test_rollouts_of_other_weights_end_the_run(difference: float) -> None:
    """Weights that arrived wrong show in the log-probabilities of what is sampled from them."""
    engine = remote(Server(0))
    engine._sync = SimpleNamespace(tolerance=0.01)  # type: ignore[assignment]
    engine.check_parity(0.005)
    with pytest.raises(
        TrainingError, match=r"does not sample from what is trained: .* differ by (0.02|nan) on average"
    ):
        engine.check_parity(difference)


@pytest.mark.parametrize(("top_p", "ahead", "checked"), [(1.0, 0, True), (0.9, 0, False), (1.0, 1, False)])
def test_parity_is_checked_where_it_must_hold(make_trainer: Any, top_p: float, ahead: int, checked: bool) -> None:
    """After each step; not of a truncated distribution, nor of rollouts from older weights."""
    trainer = make_trainer(max_steps=1, max_tokens=4, top_p=top_p)
    trainer.engine_config = EngineConfig(kind="vllm", num_batches_ahead=ahead)
    trainer.sampler.submitted = lambda number: True
    trainer.sampler.get = lambda number: trainer.sampler.sample(trainer._rows(number), trainer.sampling)
    seen: list[float] = []
    trainer.engine.check_parity = seen.append
    trainer.train()
    assert bool(seen) is checked
    assert all(value < 1e-4 for value in seen)
    assert "sampling/logp_difference" in trainer.state.log_history[-1]


# --- bad input


def test_prompts_too_long_are_an_error(make_trainer: Any, tmp_path: Path) -> None:
    """None is dropped in silence; before anything is written."""
    with pytest.raises(InputError, match=r"32 of 32 training prompts .* max_prompt_length=8 tokens .*longest has \d+"):
        make_trainer(max_prompt_length=8)
    assert not (tmp_path / "run").exists()


def test_long_evaluation_prompts_are_an_error_too(make_trainer: Any) -> None:
    env = Environment(ROWS, [{"question": "legs " * 200, "answer": "4"}])
    with pytest.raises(InputError, match="1 of 1 evaluation prompts are longer"):
        make_trainer(env=env)


def test_an_environment_without_training_rows_is_refused(make_trainer: Any) -> None:
    with pytest.raises(InputError, match="no training rows"):
        make_trainer(env=Environment([], ROWS))


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


def test_the_embedded_engine_refuses_batches_ahead(make_trainer: Any) -> None:
    """It samples from the model that is being trained."""
    with pytest.raises(InputError, match=r"engine\.num_batches_ahead"):
        make_trainer(engine=EngineConfig(num_batches_ahead=1))


def test_an_unknown_engine_is_refused(make_trainer: Any) -> None:
    with pytest.raises(InputError, match=r"engine 'vlm'.*'vllm'"):
        make_trainer(engine="vlm")


def test_a_template_without_a_system_role_gets_the_prompt_in_the_question(
    make_trainer: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Gemma's: the system prompt is put before the question, in what is sampled and trained on."""
    refuse = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", refuse + tokenizer.chat_template)
    trainer = make_trainer(max_steps=1, max_tokens=2)
    trainer.train()
    system, question = (message["content"] for message in trainer.rollouts.rollouts[0].prompt)
    text = tokenizer.decode(trainer.rollouts.prompt_ids[0])
    assert text.index(system[:20]) < text.index(question[:20])
    assert text.startswith("<|im_start|>user")


def test_text_prompts_are_continued_as_they_are(make_trainer: Any, tokenizer: Any) -> None:
    """A base model's prompts: no chat template is put around them."""
    env = Environment([{"prompt": f"{i} + {i} =", "answer": str(2 * i)} for i in range(16)])
    trainer = make_trainer(env=env, max_steps=1, max_tokens=4)
    trainer.train()
    prompts = {tuple(tokenizer(row["prompt"])["input_ids"]) for row in env.train_rows}
    assert {tuple(ids) for ids in trainer.rollouts.prompt_ids} <= prompts


def test_gradients_of_a_step_that_was_broken_off_are_forgotten(make_trainer: Any) -> None:
    """Between two micro-batches; the next `train` begins without them."""
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
    """Nothing was trained, and a step 0 could not be gone on from."""
    trainer = make_trainer()

    def fails(*args: Any) -> Any:
        raise EngineError("the server is gone")

    trainer._next_batch = fails
    with pytest.raises(EngineError, match="the server is gone"):
        train(trainer, evaluation=EvaluationPlan(before=True, after=False, every=0))
    assert (tmp_path / "run" / "eval_results" / "eval_step_0.json").exists()
    assert not list((tmp_path / "run").glob("checkpoint-*"))
    assert train(make_trainer(), evaluation=EvaluationPlan(every=0), resume="auto")["steps"] == 2
