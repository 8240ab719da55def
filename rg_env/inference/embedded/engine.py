"""The embedded engine generates completions in-process with a transformers model. During training, this is the
trainer's model.

    engine = EmbeddedEngine(model, tokenizer, seed=0)
    completions = engine.generate(prompts, Sampling(temperature=1.0, max_tokens=256))    # token ids in, token ids out

Weights are shared with the trainer, so they do not need to be synchronized. The prompts in a call form one batch, or
several if there are more than `max_batch_size`. Each distinct prompt is prefilled once for all of its completions, and
finished sequences leave the batch. The engine runs on any torch device (CPU, CUDA, Apple MPS) and does not need vLLM.
The engine is not suitable for serving many users, because it has no paging, continuous batching or sharding across
devices.

Log-probabilities are those of the distribution that tokens are sampled from (after penalties, temperature and
truncation), as with vLLM's `logprobs_mode="processed_logprobs"`. With greedy sampling, log-probabilities are computed
at temperature 1.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rg_env.core.prompts import require_chat_template
from rg_env.errors import EngineError, InputError
from rg_env.inference.embedded.kv_cache import GrowingCache, decoding_attention
from rg_env.inference.protocol import Completion, Engine, Sampling

_CACHE_BLOCK = 64  # initial cache capacity beyond the prompt, in tokens; it grows as needed
_SHARED_FROM_HIDDEN = 512  # multi-threaded decoding is faster at this hidden size and above
_GREEDY_BELOW = 1e-5  # as in vLLM; dividing logits by a lower temperature could overflow
_TRUNCATION = ("top_k", "top_p", "min_p")
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_SHRINK_AT = 0.8  # the batch is compacted when less than this fraction of its rows are still running

Watch = Callable[[int, float], bool]
"""Callback that receives each sampled token and its log-probability. Returning True ends the completion."""


@dataclass(eq=False)
class Job:
    """Request for one completion."""

    prompt: Sequence[int]
    sampling: Sampling
    seed: int | None = None
    """Seed for this completion. None uses the engine's random generator."""
    watch: Watch | None = None


class EmbeddedEngine(Engine):
    """Generates completions with `model`.

    Args:
        model: a transformers causal language model, on one device. PEFT-wrapped models are supported.
        tokenizer: the model's tokenizer, with a chat template.
        model_name: name of the model in HTTP requests. By default, the model's own name.
        max_context: maximum total number of tokens in a prompt and its completion. By default, the model's position
            limit.
        max_batch_size: maximum number of sequences decoded concurrently. Larger batches are split.
        seed: sampling seed. None uses torch's global generator.

    Raises:
        InputError: the tokenizer has no chat template.
    """

    name = "embedded"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        model_name: str | None = None,
        max_context: int | None = None,
        max_batch_size: int = 512,
        seed: int | None = None,
    ):
        require_chat_template(tokenizer)
        self.model, self.tokenizer = model, tokenizer
        self.config = model.config.get_text_config(decoder=True)
        self.model_name = model_name or model.config._name_or_path or "model"
        self.max_context = max_context or self.config.max_position_embeddings
        self.max_batch_size = max_batch_size
        self.end_ids = end_ids(model, tokenizer)
        self._seed = seed
        self._generator: torch.Generator | None = None
        self._one_at_a_time = threading.RLock()
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Make running calls to `generate` raise `EngineError` at the next token. New calls also raise this error until
        `resume` is called."""
        self._cancelled.set()

    def resume(self) -> None:
        """Allow generation again after `cancel`."""
        self._cancelled.clear()

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Sample a completion for each prompt (token ids), in order. Raises the same errors as `run`."""
        return self.run([Job(prompt, sampling) for prompt in prompts])

    def run(self, jobs: Sequence[Job]) -> list[Completion]:
        """Generate a completion for each of `jobs`, in order.

        Raises:
            InputError: a prompt leaves no room in the context for a completion.
            EngineError: the model failed, or `cancel` was called.
        """
        if jobs and (longest := max(len(job.prompt) for job in jobs)) >= self.max_context:
            raise InputError(f"a prompt has {longest} tokens, but the model's context length is {self.max_context}")
        # Sort by length so that prompts in a batch need little padding, then by content so that identical prompts are
        # adjacent.
        order = sorted(range(len(jobs)), key=lambda i: (len(jobs[i].prompt), list(jobs[i].prompt)))
        completions: dict[int, Completion] = {}
        with self._running():
            for start in range(0, len(order), self.max_batch_size):
                turn = order[start : start + self.max_batch_size]
                completions |= zip(turn, self._run([jobs[i] for i in turn]), strict=True)
        return [completions[i] for i in range(len(jobs))]

    def score(self, tokens: Sequence[int], top: int = 0) -> list[tuple[float, dict[int, float]]]:
        """Score `tokens` without temperature or penalties.

        For each token after the first, return its log-probability (natural log) and the log-probabilities of the `top`
        most likely tokens at its position.

        Raises:
            EngineError: the model failed.
        """
        with self._running():
            ids = torch.tensor([list(tokens)], device=self.model.device)
            logprobs = torch.log_softmax(self.model(input_ids=ids, use_cache=False).logits[0, :-1].float(), dim=-1)
            own = logprobs.gather(1, ids[0, 1:, None]).squeeze(1).tolist()
            values, best = logprobs.topk(top)
            pairs = zip(best.tolist(), values.tolist(), strict=True)
            return [(each, dict(zip(*pair, strict=True))) for each, pair in zip(own, pairs, strict=True)]

    @property
    def generator(self) -> torch.Generator | None:
        """Random generator for sampling, created on the model's current device at first use. None if the engine has no
        seed."""
        if self._generator is None and self._seed is not None:
            self._generator = torch.Generator(device=self.model.device).manual_seed(self._seed)
        return self._generator

    def random_state(self) -> torch.Tensor | None:
        return self.generator and self.generator.get_state()

    def set_random_state(self, state: torch.Tensor | None) -> None:
        if state is not None and self.generator is not None:
            self.generator.set_state(state)

    @contextmanager
    def aside(self) -> Iterator[None]:
        # Within this context, a new generator is created from the seed, so every evaluation draws the same random
        # numbers.
        of_training, self._generator = self._generator, None
        try:
            yield
        finally:
            self._generator = of_training

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Within this context, hold a lock and disable dropout and gradients. Re-raise errors as `EngineError`."""
        with self._one_at_a_time:
            training, threads = self.model.training, torch.get_num_threads()
            self.model.eval()
            # On a CPU, a small model's decode step is too little work to benefit from several threads.
            if self.model.device.type == "cpu" and self.config.hidden_size < _SHARED_FROM_HIDDEN:
                torch.set_num_threads(1)
            try:
                with torch.inference_mode():
                    yield
            except EngineError:
                raise
            except Exception as error:
                raise EngineError(f"generation failed: {type(error).__name__}: {error}") from error
            finally:
                self.model.train(training)
                torch.set_num_threads(threads)

    def _run(self, jobs: list[Job]) -> list[Completion]:
        """Generate one batch."""
        device = self.model.device
        distinct = dict.fromkeys(tuple(job.prompt) for job in jobs)
        row_of = {prompt: row for row, prompt in enumerate(distinct)}
        rows = torch.tensor([row_of[tuple(job.prompt)] for job in jobs], device=device)
        width = max(map(len, distinct))
        missing = [width - len(prompt) for prompt in distinct]  # prompts are padded on the left
        ids = torch.tensor([[0] * n + list(row) for n, row in zip(missing, distinct, strict=True)], device=device)
        valid = torch.arange(width, device=device) >= torch.tensor(missing, device=device).unsqueeze(1)
        rooms = [min(job.sampling.max_tokens or self.max_context, self.max_context - len(job.prompt)) for job in jobs]
        longest = max(rooms)
        cache = GrowingCache(self.config, width + min(longest, _CACHE_BLOCK))

        with decoding_attention(self.config) as fast:
            logits = self._forward(ids, valid, valid.cumsum(1) - 1, cache, fast)
            cache.select(rows)  # repeats each shared prompt for its completions
            logits, valid = logits[rows], valid[rows]
            position = valid.sum(1)
            valid = torch.cat([valid, valid.new_ones(len(jobs), longest)], dim=1)
            sampler = Sampler(jobs, logits.shape[1], device, self.generator)
            ends = torch.tensor(sorted(self.end_ids), device=device)
            limits = torch.tensor(rooms, device=device)
            # Results stay on the device until the end because copying them at each step would stall an accelerator.
            all_ids = ids.new_zeros(len(jobs), longest)
            all_logprobs = logits.new_zeros(len(jobs), longest, dtype=torch.float32)
            lengths = torch.zeros(len(jobs), dtype=torch.long, device=device)
            stopped = torch.zeros(len(jobs), dtype=torch.bool, device=device)
            active = torch.arange(len(jobs), device=device)  # index of each row's job
            running = torch.ones(len(jobs), dtype=torch.bool, device=device)
            watched = any(job.watch for job in jobs)
            for step in range(longest):
                if self._cancelled.is_set():
                    raise EngineError("generation was cancelled")
                tokens, logprobs = sampler.draw(logits)
                all_ids[active, step], all_logprobs[active, step] = tokens, logprobs
                lengths[active] += running
                stops = torch.isin(tokens, ends)
                if watched:
                    rows_now = zip(*(each.tolist() for each in (active, running, tokens, logprobs)), strict=True)
                    for row, (job, is_running, token, logprob) in enumerate(rows_now):
                        if is_running and (watch := jobs[job].watch) and watch(token, logprob):
                            stops[row] = True
                stopped[active] |= running & stops
                running = running & ~stops & (step + 1 < limits)
                left = int(running.sum())
                if left == 0:
                    break
                if left < _SHRINK_AT * len(running):
                    rows = running.nonzero().squeeze(1)
                    cache.select(rows)
                    sampler.keep(rows)
                    tokens, valid, position, limits, active, running = (
                        t[rows] for t in (tokens, valid, position, limits, active, running)
                    )
                seen = valid[:, : width + step + 1]
                logits = self._forward(tokens.unsqueeze(1), seen, position.unsqueeze(1) + step, cache, fast)
        columns = (all_ids.tolist(), all_logprobs.tolist(), lengths.tolist(), stopped.tolist())
        return [
            Completion(row[:length], logprob[:length], "stop" if stop else "length")
            for row, logprob, length, stop in zip(*columns, strict=True)
        ]

    def _forward(
        self, ids: torch.Tensor, valid: torch.Tensor, positions: torch.Tensor, cache: GrowingCache, fast: bool
    ) -> torch.Tensor:
        """Compute logits `(B, V)` for the position after `ids (B, L)`. `valid (B, total) bool` is False for padding."""
        mask = valid
        if fast:  # transformers uses a 4-D mask as is; building its own mask would take a millisecond per step
            mask = valid[:, None, None, :]
            if ids.shape[1] > 1:
                causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)
                # Let padding attend to itself. A position that attended to nothing would yield NaN, which would
                # spread to other positions.
                mask = (mask & causal.tril()) | causal.tril().triu()
        output = self.model(
            input_ids=ids,
            attention_mask=mask if fast else mask.long(),
            position_ids=positions.clamp(min=0),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1]


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the end-of-sequence tokens from the tokenizer and the generation config (Llama 3 has three)."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ends = set(configured) if isinstance(configured, list | tuple) else {configured}
    return frozenset(int(token) for token in ends | {tokenizer.eos_token_id} if token is not None)


class Sampler:
    """Draws one token per row at each step, using the settings of the row's job. Jobs without a seed use
    `generator`."""

    def __init__(
        self, jobs: Sequence[Job], vocab_size: int, device: torch.device, generator: torch.Generator | None = None
    ):
        self.generator = generator
        seeds = {row: job.seed for row, job in enumerate(jobs) if job.seed is not None}
        self.own = {row: torch.Generator().manual_seed(seed) for row, seed in seeds.items()}
        settings = [job.sampling for job in jobs]
        # The most common case (temperature 1 without truncation or penalties) needs no computation.
        used = {
            ("temperature",): any(each.temperature != 1 for each in settings),
            _TRUNCATION: any(each.top_k > 0 or each.top_p < 1 or each.min_p > 0 for each in settings),
            _PENALTIES: any(each.penalized for each in settings),
        }
        names = [name for group, is_used in used.items() if is_used for name in group]
        self.rows = {
            name: torch.tensor([getattr(each, name) for each in settings], device=device).unsqueeze(1) for name in names
        }
        """Sampling settings `(B, 1)` of each kind (temperature, truncation, penalties) that at least one row uses and,
        for penalties, two tensors `(B, V)`: each token's count in the completion, and whether the token is in the
        prompt."""
        if _PENALTIES[0] in self.rows:
            self.rows["counts"] = torch.zeros(len(settings), vocab_size, dtype=torch.int32, device=device)
            self.rows["in_prompt"] = torch.zeros(len(settings), vocab_size, dtype=torch.bool, device=device)
            for row, job in enumerate(jobs):
                self.rows["in_prompt"][row, list(job.prompt)] = True

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only `rows` (indices into the current rows)."""
        self.rows = {name: values[rows] for name, values in self.rows.items()}
        if self.own:
            self.own = {new: self.own[old] for new, old in enumerate(rows.tolist()) if old in self.own}

    def draw(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample tokens `(B,) int64` from `logits (B, V)`, and return them with their log-probabilities `(B,)
        float32`."""
        logits = self._truncate(self._penalize(logits.float()))
        logprobs = torch.log_softmax(logits, dim=-1)
        # Inverse-CDF sampling needs one random number per row instead of one per vocabulary entry.
        cdf = logprobs.exp().cumsum(dim=-1)
        uniform = torch.rand(cdf.shape[0], 1, generator=self.generator, dtype=cdf.dtype, device=cdf.device)
        for row, generator in self.own.items():
            uniform[row] = torch.rand(1, generator=generator)
        # With right=True, a token of probability 0 is never selected. The clamp handles rounding at the upper end.
        tokens = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True).clamp_(max=cdf.shape[1] - 1)
        if "temperature" in self.rows:
            greedy = self.rows["temperature"] < _GREEDY_BELOW
            tokens = torch.where(greedy, logprobs.argmax(dim=-1, keepdim=True), tokens)
        if "counts" in self.rows:
            self.rows["counts"].scatter_add_(1, tokens, torch.ones_like(tokens, dtype=torch.int32))
        return tokens.squeeze(1), logprobs.gather(1, tokens).squeeze(1)

    def _penalize(self, logits: torch.Tensor) -> torch.Tensor:
        if "counts" not in self.rows:
            return logits
        repetition, presence, frequency = (self.rows[name] for name in _PENALTIES)
        counts = self.rows["counts"]
        # The repetition penalty considers the prompt and the completion (Keskar et al., 2019). The presence and
        # frequency penalties consider only the completion, as in OpenAI's API.
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where((counts > 0) | self.rows["in_prompt"], repeated, logits)
        return logits - presence * (counts > 0) - frequency * counts

    def _truncate(self, logits: torch.Tensor) -> torch.Tensor:
        greedy: torch.Tensor | bool = False
        if "temperature" in self.rows:
            greedy = self.rows["temperature"] < _GREEDY_BELOW
            logits = logits / torch.where(greedy, 1.0, self.rows["temperature"])
        if "top_k" not in self.rows:
            return logits
        top_k, top_p, min_p = (self.rows[name] for name in _TRUNCATION)
        ordered, order = logits.sort(dim=-1, descending=True)
        drop = (torch.arange(ordered.shape[1], device=logits.device) >= top_k) & (top_k > 0)
        probs = ordered.masked_fill(drop, -torch.inf).softmax(dim=-1)
        drop |= (probs.cumsum(dim=-1) - probs >= top_p) & (top_p < 1)  # keep the token that crosses the threshold
        probs = ordered.masked_fill(drop, -torch.inf).softmax(dim=-1)
        drop |= probs < min_p * probs[:, :1]
        drop[:, 0] = False
        drop &= ~torch.as_tensor(greedy, device=logits.device)
        return logits.masked_fill(torch.zeros_like(drop).scatter(1, order, drop), -torch.inf)
