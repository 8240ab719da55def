"""The embedded engine reports the tokens and log-probabilities that it sampled."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model_families import FAMILIES, SMALL, random_model, supports_sdpa
from transformers import Mamba2Config

from rg_env.errors import EngineError, InputError
from rg_env.inference.embedded.engine import EmbeddedEngine, Sampler, sequences_that_fit
from rg_env.inference.embedded.kv_cache import GrowingLayer
from rg_env.inference.protocol import Completion, PromptEncoder, Sampling

QUESTIONS = ["Now, how many legs if you have 2 dogs?", "1 + 2 =", "Solve for x: 3*x + 4 = 19", "And " * 30 + "2 bees?"]
GREEDY = Sampling(temperature=0.0, max_tokens=24)


@pytest.fixture(scope="module")
def prompts(tokenizer: Any) -> list[list[int]]:
    encoder = PromptEncoder(tokenizer)
    return [encoder([{"role": "user", "content": question}]) for question in QUESTIONS]


@contextmanager
def forward_passes(model: Any, watch: Callable[[tuple[int, ...]], None]) -> Iterator[None]:
    """Calls `watch` with the shape of the input of each forward pass."""
    with model.register_forward_pre_hook(lambda _, __, kwargs: watch(kwargs["input_ids"].shape), with_kwargs=True):
        yield


def check_logprobs(model: Any, prompt: list[int], got: Completion, temperature: float = 1.0) -> None:
    """Compare a completion's log-probabilities with those of one plain forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + got.token_ids])).logits[0, len(prompt) - 1 : -1].float() / temperature
    expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(got.token_ids)[:, None]).squeeze(-1)
    torch.testing.assert_close(torch.tensor(got.logprobs), expected, atol=5e-4, rtol=1e-3)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_match_a_direct_forward_pass(
    family: str, attention: str, tokenizer: Any, prompts: list[list[int]]
) -> None:
    """Log-probabilities match in every model family for a batch of prompts of different lengths, each sampled three
    times, with and without a start that all prompts share."""
    config = FAMILIES[family]
    if attention == "sdpa" and not supports_sdpa(config):
        pytest.skip("this version of transformers does not support the combination")
    model = random_model(config, attn_implementation=attention)
    engine = EmbeddedEngine(model, tokenizer, seed=0)
    for start in ([], prompts[3][:30]):
        repeated = [start + prompt for prompt in prompts for _ in range(3)]
        for prompt, got in zip(repeated, engine.generate(repeated, Sampling(max_tokens=24)), strict=True):
            check_logprobs(model, prompt, got)
    assert model.config._attn_implementation == attention


def test_a_model_without_attention(tokenizer: Any, prompts: list[list[int]]) -> None:
    """Mamba 2 takes its cache as `cache_params`, and has neither keys nor values."""
    model = random_model(Mamba2Config(**SMALL, num_heads=8, head_dim=16, n_groups=1))
    engine = EmbeddedEngine(model, tokenizer, seed=0)
    for prompt, got in zip(prompts, engine.generate(prompts, Sampling(max_tokens=8)), strict=True):
        check_logprobs(model, prompt, got)
    assert sequences_that_fit(model, 1000, 512) == 512


def test_texts_in_stop_end_a_completion(engine: EmbeddedEngine, tokenizer: Any, prompts: list[list[int]]) -> None:
    """A completion ends with the first token that completes such a text, and equals the start of the completion without
    `stop`. The other completions of the batch go on."""
    prompts, sampling = prompts[:3] * 2, Sampling(temperature=0.0, max_tokens=40)
    stop = ("an", "= 3")
    whole, ended = (engine.generate(prompts, replace(sampling, stop=texts)) for texts in ((), stop))
    kinds = set()
    for one, other in zip(whole, ended, strict=True):
        count = len(other.token_ids)
        assert other.token_ids == one.token_ids[:count]
        text = tokenizer.decode(other.token_ids)
        assert not any(each in tokenizer.decode(other.token_ids[:-1]) for each in stop)
        stopped = any(each in text for each in stop)
        kinds.add(stopped)
        assert (
            count < len(one.token_ids) or not stopped or any(tokenizer.decode(one.token_ids).endswith(s) for s in stop)
        )
        assert other.finish_reason == ("stop" if stopped else one.finish_reason)
        assert stopped or count == len(one.token_ids)
    assert True in kinds


def test_logprobs_with_a_temperature(engine: EmbeddedEngine, prompts: list[list[int]]) -> None:
    """Log-probabilities are those of the tempered distribution, which is the one sampled from. A tiny temperature is
    greedy, because dividing by it would overflow."""
    (got,) = engine.generate(prompts[:1], Sampling(temperature=0.5, max_tokens=24))
    check_logprobs(engine.model, prompts[0], got, 0.5)
    (tiny,) = engine.generate(prompts[:1], Sampling(temperature=1e-40, max_tokens=24))
    assert [tiny.token_ids] == [each.token_ids for each in engine.generate(prompts[:1], GREEDY)]
    assert all(math.isfinite(value) for value in tiny.logprobs)


def test_greedy_completions_do_not_depend_on_the_batch(engine: EmbeddedEngine, prompts: list[list[int]]) -> None:
    """A greedy completion is the argmax of plain forward passes: alone, in a batch, and in a batch that
    `max_batch_size` splits."""
    alone = [engine.generate([each], GREEDY)[0].token_ids for each in prompts]
    with torch.no_grad():
        logits = engine.model(torch.tensor([prompts[0] + alone[0]])).logits[0, len(prompts[0]) - 1 : -1]
    assert logits.argmax(-1).tolist() == alone[0]
    assert [got.token_ids for got in engine.generate(prompts, GREEDY)] == alone
    engine.max_batch_size = 3
    assert [got.token_ids for got in engine.generate(prompts, GREEDY)] == alone


def test_an_end_token_or_the_limit_ends_a_completion(engine: EmbeddedEngine, prompts: list[list[int]]) -> None:
    """The end token is part of the completion."""
    for got in engine.generate(prompts[1:2] * 40, Sampling(max_tokens=8)):
        ended = got.token_ids[-1] in engine.end_ids
        assert (got.finish_reason == "stop") == ended
        assert ended or len(got.token_ids) == 8
        assert not set(got.token_ids[:-1]) & engine.end_ids


def test_long_completions_outgrow_the_first_cache_block(model: Any, tokenizer: Any, prompts: list[list[int]]) -> None:
    """Log-probabilities remain correct when the cache grows several times."""
    engine = EmbeddedEngine(model, tokenizer, seed=0)
    engine.end_ids = frozenset([tokenizer.pad_token_id])  # never sampled, so the completion runs to its limit
    (got,) = engine.generate(prompts[1:2], Sampling(max_tokens=200))
    assert len(got.token_ids) == 200
    check_logprobs(model, prompts[1], got)


def test_cache_layers_accept_the_arguments_of_any_release() -> None:
    """transformers 5.24 passes a layer's `update` positional and keyword arguments that 5.19 does not pass."""
    states = torch.randn(2, 1, 3, 4)
    keys, values = GrowingLayer(4).update(states, -states, {"sin": states}, position_ids=torch.arange(3))
    assert torch.equal(keys, states)
    assert torch.equal(values, -states)


def test_a_shared_prompt_is_prefilled_once(engine: EmbeddedEngine, prompts: list[list[int]]) -> None:
    """A prompt is prefilled once for all its completions. Finished sequences leave the batch, which never has more than
    1 / 0.8 times the rows that are still running."""
    shapes: list[tuple[int, ...]] = []
    with forward_passes(engine.model, shapes.append):
        results = engine.generate(prompts[:1] * 32 + prompts[1:2] * 32, Sampling(max_tokens=60))
    rows = [shape[0] for shape in shapes]
    assert rows[:2] == [2, 64]
    for step, width in enumerate(rows[1:], start=1):
        running = sum(len(got.token_ids) > step for got in results)
        assert running <= width <= running / 0.8 + 1
    assert rows[-1] < 64


def test_a_start_that_all_prompts_share_is_prefilled_once(engine: EmbeddedEngine, prompts: list[list[int]]) -> None:
    """Such as a system prompt or few-shot examples. The results are those of each prompt alone."""
    start = prompts[3]
    several = [start, *(start + prompt[7:] for prompt in prompts), [*start, 9], [*start, 9, 8]]
    alone = [engine.generate([prompt], GREEDY)[0].token_ids for prompt in several]
    shapes: list[tuple[int, ...]] = []
    with forward_passes(engine.model, shapes.append):
        together = engine.generate(several, GREEDY)
    assert [got.token_ids for got in together] == alone
    longest = max(map(len, several))
    assert shapes[:2] == [(1, len(start) - 1), (len(several), longest - len(start) + 1)]
    for prompt, got in zip(several, together, strict=True):
        check_logprobs(engine.model, prompt, got)


def test_samples_follow_the_distribution(engine: EmbeddedEngine, tokenizer: Any) -> None:
    """The frequencies of 4,000 first tokens are within five standard errors of their probabilities."""
    prompt = PromptEncoder(tokenizer)([{"role": "user", "content": "4 + 5 ="}])
    counts = torch.zeros(engine.config.vocab_size)
    for got in engine.generate([prompt] * 4000, Sampling(max_tokens=1)):
        counts[got.token_ids[0]] += 1
    with torch.no_grad():
        probs = engine.model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    error = (probs * (1 - probs) / 4000).sqrt()
    assert ((counts / 4000 - probs).abs() <= 5 * error + 1e-3).all()


def test_the_seed_determines_the_samples(model: Any, tokenizer: Any, prompts: list[list[int]]) -> None:
    def ids(seed: int) -> list[list[int]]:
        completions = EmbeddedEngine(model, tokenizer, seed=seed).generate(prompts[:1] * 12, Sampling(max_tokens=24))
        return [got.token_ids for got in completions]

    assert ids(1) == ids(1) != ids(2)


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
    """Only allowed tokens are sampled, with the log-probabilities of the renormalized distribution."""
    probs = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    sampler = Sampler(settings, [[]], 4, torch.device("cpu"), torch.Generator().manual_seed(0))
    drawn: dict[int, float] = {}
    for _ in range(300):
        tokens, logprobs = sampler.draw(probs.log())
        drawn[int(tokens)] = float(logprobs.exp())
    assert set(drawn) == allowed
    total = sum(float(probs[0, token]) for token in allowed)
    for token, prob in drawn.items():
        assert prob == pytest.approx(float(probs[0, token]) / total, abs=1e-5)


def test_penalties_follow_their_formulas() -> None:
    """The repetition penalty includes the prompt; presence and frequency penalties apply to generated tokens."""
    sampling = Sampling(0.0, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    sampler = Sampler(sampling, [[0, 1]], 4, torch.device("cpu"))
    logits = torch.tensor([[2.0, -2.0, 5.0, 1.0]])
    penalized = ([1.0, -4.0, 5.0, 1.0], [1.0, -4.0, 2.5 - 0.5 - 0.25, 1.0], [1.0, -4.0, 2.5 - 0.5 - 2 * 0.25, 1.0])
    for expected in penalized:  # token 2 is the most likely each time, and the prompt does not contain it
        token, logprob = sampler.draw(logits)
        assert int(token) == expected.index(max(expected))
        assert float(logprob) == pytest.approx(float(torch.tensor(expected).log_softmax(-1).max()), abs=1e-6)


def test_generation_leaves_the_model_trainable(model: Any, tokenizer: Any, prompts: list[list[int]]) -> None:
    """The model stays in training mode and can still compute gradients."""
    model.train()
    try:
        EmbeddedEngine(model, tokenizer, seed=0).generate(prompts[:1], GREEDY)
        assert model.training
        model(torch.tensor([[5, 6, 7]])).logits.sum().backward()
        model.zero_grad()
    finally:
        model.eval()


def test_a_prompt_that_fills_the_context_is_refused(engine: EmbeddedEngine) -> None:
    with pytest.raises(InputError, match="a prompt has 512 tokens, but the model's context length is 512"):
        engine.generate([[5] * 512], GREEDY)


def test_a_tokenizer_of_another_model_is_refused(engine: EmbeddedEngine) -> None:
    with pytest.raises(InputError, match=r"the token id 9999, but the model has \d+ tokens: use its own tokenizer"):
        engine.generate([[1], [2, 9999]], Sampling())


def test_an_error_in_the_model_is_an_engine_error(engine: EmbeddedEngine, prompts: list[list[int]]) -> None:
    """The message includes the type of the original exception."""

    def fail(_: object) -> None:
        raise RuntimeError("no memory")

    with forward_passes(engine.model, fail), pytest.raises(EngineError, match="failed: RuntimeError: no memory"):
        engine.generate(prompts, GREEDY)


def test_a_batch_is_small_enough_for_the_memory(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of long completions would otherwise need far more memory than the weights."""
    sizes = []
    for free in (2**20, 2**30, 2**40):
        monkeypatch.setattr("psutil.virtual_memory", lambda free=free: SimpleNamespace(available=free))
        sizes.append(sequences_that_fit(model, 1000, 512))
    small, medium, large = sizes
    assert (small, large) == (16, 512)
    config = model.config
    per_token = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    assert medium * 1000 * per_token <= 2**28 < 2 * medium * 1000 * per_token


def test_cancel_stops_within_a_token(model: Any, tokenizer: Any, prompts: list[list[int]]) -> None:
    """`cancel` ends a long generation in another thread at once. After `resume`, the engine works again."""
    engine = EmbeddedEngine(model, tokenizer, seed=0)
    engine.end_ids = frozenset([tokenizer.pad_token_id])
    passes: list[tuple[int, ...]] = []

    def cancel(shape: tuple[int, ...]) -> None:
        passes.append(shape)
        if len(passes) == 3:
            thread = threading.Thread(target=engine.cancel)
            thread.start()
            thread.join()

    with forward_passes(model, cancel), pytest.raises(EngineError, match="cancelled"):
        engine.generate(prompts[1:2] * 64, Sampling(max_tokens=450))
    assert len(passes) == 3
    engine.resume()
    assert engine.generate(prompts, Sampling(max_tokens=2))
