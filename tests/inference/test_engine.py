"""The embedded engine: what it samples is what it says it sampled."""

import math
import threading
import time
from typing import Any

import pytest
import torch
from model_families import FAMILIES
from transformers import AutoModelForCausalLM

from rg_env.errors import EngineError
from rg_env.inference.embedded.engine import EmbeddedEngine
from rg_env.inference.embedded.sampling import Sampler
from rg_env.inference.protocol import BadRequest, ChatRequest, Generation, Sampling

QUESTIONS = ["Now, how many legs if you have 2 dogs?", "1 + 2 =", "Solve for x: 3*x + 4 = 19", "And " * 30 + "2 bees?"]


def request(text: str, **fields: Any) -> ChatRequest:
    return ChatRequest("", [{"role": "user", "content": text}], **{"max_tokens": 24, **fields})


def direct_logprobs(
    engine: EmbeddedEngine, asked: ChatRequest, got: Generation, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of the completion by one plain forward pass."""
    prompt = engine.prompt_ids(asked)
    with torch.no_grad():
        logits = engine.model(torch.tensor([prompt + got.ids])).logits[0, len(prompt) - 1 : -1].float() / temperature
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(got.ids)[:, None]).squeeze(-1)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_a_direct_forward_pass(family: str, attention: str, tokenizer: Any) -> None:
    """Prompts of different lengths in one batch, several completions each, for each family of models."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family], attn_implementation=attention)
    engine = EmbeddedEngine(model, tokenizer, seed=0)
    asked = [request(question, n=3) for question in QUESTIONS]
    for one, generations in zip(asked, engine.chat(asked), strict=True):
        assert len(generations) == 3
        for got in generations:
            torch.testing.assert_close(
                torch.tensor(got.logprobs), direct_logprobs(engine, one, got), atol=2e-4, rtol=1e-4
            )
    assert model.config._attn_implementation == attention


def test_logprobs_with_a_temperature(engine: EmbeddedEngine) -> None:
    """They are those of the tempered distribution, which is the one sampled from."""
    asked = request(QUESTIONS[0], sampling=Sampling(temperature=0.5))
    ((got,),) = engine.chat([asked])
    torch.testing.assert_close(
        torch.tensor(got.logprobs), direct_logprobs(engine, asked, got, 0.5), atol=1e-4, rtol=1e-4
    )


def test_a_tiny_temperature_is_greedy(engine: EmbeddedEngine) -> None:
    """Dividing by it would overflow into NaN log-probabilities."""
    tiny, zero = (
        engine.chat([request(QUESTIONS[0], sampling=Sampling(temperature=temperature))])[0][0]
        for temperature in (1e-40, 0.0)
    )
    assert tiny.ids == zero.ids
    assert all(math.isfinite(value) for value in tiny.logprobs)


def test_megabytes_of_prompt_are_refused_at_once(engine: EmbeddedEngine) -> None:
    """Without tokenising them."""
    start = time.monotonic()
    with pytest.raises(BadRequest, match="longer than the model's context length"):
        engine.prompt_ids(request("x y " * 1_000_000))
    assert time.monotonic() - start < 0.5


def test_greedy_takes_the_likeliest_token(engine: EmbeddedEngine) -> None:
    """Each token is the argmax of a plain forward pass, also next to rows that are sampled."""
    asked = [request(QUESTIONS[0], sampling=Sampling(temperature=0.0)), request(QUESTIONS[0], n=5)]
    (got,), _ = engine.chat(asked)
    prompt = engine.prompt_ids(asked[0])
    with torch.no_grad():
        logits = engine.model(torch.tensor([prompt + got.ids])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == got.ids


def test_a_batch_answers_as_each_request_alone(engine: EmbeddedEngine) -> None:
    """Greedy completions do not depend on the rest of the batch, nor on how it is cut."""
    asked = [request(question, sampling=Sampling(temperature=0.0)) for question in QUESTIONS]
    alone = [engine.chat([one])[0][0].ids for one in asked]
    assert [got[0].ids for got in engine.chat(asked)] == alone
    engine.max_batch_size = 3
    assert [got[0].ids for got in engine.chat(asked)] == alone


def test_the_end_token_ends_a_completion(engine: EmbeddedEngine) -> None:
    """It is among the ids, not in the text; without it the reason is the length."""
    for got in engine.chat([request(QUESTIONS[1], n=40, max_tokens=8)])[0]:
        ended = got.ids[-1] in engine.end_ids
        assert (got.finish_reason == "stop") == ended
        assert ended or len(got.ids) == 8
        assert not set(got.ids[:-1]) & engine.end_ids
        assert "<|im_end|>" not in got.text


def test_limits_are_kept_per_request(engine: EmbeddedEngine) -> None:
    """A short one leaves the batch while a long one goes on."""
    short, long = engine.chat([request(QUESTIONS[0], n=8, max_tokens=1), request(QUESTIONS[0], n=8, max_tokens=40)])
    assert {len(got.ids) for got in short} == {1}
    assert max(len(got.ids) for got in long) > 1


def test_long_completions_outgrow_the_first_cache_block(model: Any, tokenizer: Any) -> None:
    """Log-probabilities stay right when the cache grows, several times over."""
    engine = EmbeddedEngine(model, tokenizer, seed=0)
    engine.end_ids = {tokenizer.pad_token_id}  # never drawn: run to the limit
    asked = request(QUESTIONS[1], max_tokens=200)
    ((got,),) = engine.chat([asked])
    assert len(got.ids) == 200
    torch.testing.assert_close(torch.tensor(got.logprobs), direct_logprobs(engine, asked, got), atol=5e-4, rtol=1e-3)


def test_a_shared_prompt_is_prefilled_once(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many completions a group has."""
    widths = []
    forward = engine.model.forward

    def record(*args: Any, **kwargs: Any) -> Any:
        widths.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(engine.model, "forward", record)
    engine.chat([request(QUESTIONS[0]) for _ in range(8)] + [request(QUESTIONS[1], n=8)])
    assert widths[0][0] == 2
    assert widths[1] == (16, 1)


def test_finished_sequences_leave_the_batch(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch shrinks; it never decodes more rows than 1 / 0.8 of those that still run."""
    rows = []
    forward = engine.model.forward

    def record(*args: Any, **kwargs: Any) -> Any:
        rows.append(kwargs["input_ids"].shape[0])
        return forward(*args, **kwargs)

    monkeypatch.setattr(engine.model, "forward", record)
    (results,) = engine.chat([request(QUESTIONS[0], n=64, max_tokens=60)])
    lengths = [len(got.ids) for got in results]
    for step, width in enumerate(rows[1:], start=1):
        running = sum(length > step for length in lengths)
        assert running <= width <= running / 0.8 + 1
    assert rows[-1] < 64


def test_samples_follow_the_distribution(engine: EmbeddedEngine) -> None:
    """First tokens of 4,000 completions against their probabilities: every frequency within five standard errors."""
    asked = request("4 + 5 =", n=1000, max_tokens=1)
    counts = torch.zeros(engine.config.vocab_size)
    for _ in range(4):
        for got in engine.chat([asked])[0]:
            counts[got.ids[0]] += 1
    with torch.no_grad():
        probs = engine.model(torch.tensor([engine.prompt_ids(asked)])).logits[0, -1].softmax(-1)
    error = (probs * (1 - probs) / 4000).sqrt()
    assert ((counts / 4000 - probs).abs() <= 5 * error + 1e-3).all()


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        (Sampling(top_k=2), {0, 1}),
        (Sampling(top_p=0.75), {0, 1}),
        (Sampling(min_p=0.5), {0, 1}),
        (Sampling(top_p=1e-6), {0}),
        (Sampling(top_k=3, min_p=0.9), {0}),
        (Sampling(), {0, 1, 2, 3}),
    ],
)
def test_truncation_keeps_the_right_tokens(settings: Sampling, allowed: set[int]) -> None:
    """And renormalises: the log-probabilities given are those of the truncated distribution."""
    probs = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    sampler = Sampler([settings], [[]], 4, torch.device("cpu"), torch.Generator().manual_seed(0))
    drawn: dict[int, float] = {}
    for _ in range(300):
        tokens, logprobs = sampler.draw(probs.log())
        drawn[int(tokens)] = float(logprobs.exp())
    assert set(drawn) == allowed
    total = sum(float(probs[0, token]) for token in allowed)
    for token, prob in drawn.items():
        assert prob == pytest.approx(float(probs[0, token]) / total, abs=1e-5)


def test_penalties_follow_their_formulas() -> None:
    """Repetition counts the prompt; presence and frequency count what was generated."""
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    sampler = Sampler([sampling], [[0, 1]], 4, torch.device("cpu"), torch.Generator().manual_seed(0))
    logits = torch.tensor([[2.0, -2.0, 1.0, 1.0]])
    assert sampler._penalise(logits).tolist() == [[1.0, -4.0, 1.0, 1.0]]
    sampler.counts[0, 2] = 2  # type: ignore[index]
    assert sampler._penalise(logits).tolist() == [[1.0, -4.0, 0.5 - 0.5 - 2 * 0.25, 1.0]]


def test_the_seed_decides(model: Any, tokenizer: Any) -> None:
    """The same seed gives the same completions, another seed others."""

    def texts(seed: int) -> list[str]:
        engine = EmbeddedEngine(model, tokenizer, seed=seed)
        return [got.text for got in engine.chat([request(QUESTIONS[0], n=16)])[0]]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


def test_generation_leaves_the_model_as_it_was(model: Any, tokenizer: Any) -> None:
    """Training mode, gradients and attention implementation."""
    model.train()
    try:
        engine = EmbeddedEngine(model, tokenizer, seed=0)
        engine.chat([request(QUESTIONS[0])])
        assert model.training
        model(torch.tensor([[5, 6, 7]])).logits.sum().backward()
        model.zero_grad()
    finally:
        model.eval()


# --- refusals and errors


def test_too_long_for_the_context(engine: EmbeddedEngine) -> None:
    """A prompt that fills it, and a limit that would leave it."""
    with pytest.raises(BadRequest, match="longer than the model's context length"):
        engine.chat([request("12 " * 2000)])
    with pytest.raises(BadRequest, match="max_tokens=100000 is too large"):
        engine.chat([request("hi", max_tokens=100000)])


def test_a_template_that_refuses_is_a_bad_request(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are passed on."""
    monkeypatch.setattr(engine.tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadRequest, match="roles must alternate"):
        engine.chat([request("hi")])


def test_an_error_in_the_model_is_an_engine_error(engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names its kind."""
    monkeypatch.setattr(engine, "_forward", lambda *args: torch.zeros(2, 3) @ torch.zeros(2, 3))
    with pytest.raises(EngineError, match="generation failed: RuntimeError"):
        engine.chat([request("hi")])


def test_cancel_stops_within_a_token(model: Any, tokenizer: Any) -> None:
    """A long generation in another thread ends at once; after `resume` the engine works again."""
    engine = EmbeddedEngine(model, tokenizer, seed=0)
    engine.end_ids = {tokenizer.pad_token_id}
    errors: list[Exception] = []

    def generate() -> None:
        try:
            engine.chat([request("hi", n=64, max_tokens=450)])
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    time.sleep(0.3)
    engine.cancel()
    thread.join(5)
    assert not thread.is_alive()
    assert "cancelled" in str(errors[0])
    engine.resume()
    assert engine.chat([request("hi", max_tokens=2)])[0][0].ids
