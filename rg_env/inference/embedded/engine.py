"""The embedded engine: generates from a transformers model inside this process, the trainer's own model in training.

    engine = EmbeddedEngine(model, tokenizer, seed=0)
    completions = engine.generate(prompts, Sampling(temperature=1.0, max_tokens=256))    # token ids in, token ids out
    [[generation]] = engine.chat([ChatRequest(model=engine.model_name, messages=[...])])  # for OpenAI's protocol

Weights are shared with the trainer, so there is nothing to synchronise. Requests of one call are generated
as one batch: each distinct prompt is prefilled once however many completions it gets, and finished sequences leave the
batch. It runs wherever torch runs (CPU, CUDA, Apple MPS) and needs no vLLM. It is not a server for many users: no
paging, no continuous refill, no sharding over devices.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rg_env.core.prompts import require_chat_template
from rg_env.errors import EngineError, InputError
from rg_env.inference.embedded.kv_cache import GrowingCache, decoding_attention
from rg_env.inference.embedded.sampling import Sampler
from rg_env.inference.protocol import BadRequest, ChatRequest, Completion, Generation, Sampling, TokenText

_CACHE_BLOCK = 64  # tokens of room for the first answers; the cache grows from there
_CHARACTERS_PER_TOKEN = 128  # more than tokens have, runs of spaces included
_SHARED_FROM_HIDDEN = 512  # hidden size from which several threads decode faster than one
_SHRINK_AT = 0.8  # compact the batch when fewer than this share of its rows still runs


class EmbeddedEngine:
    """Answers `ChatRequest`s from `model`.

    Args:
        model: a transformers causal language model, on one device. PEFT-wrapped models work.
        tokenizer: its tokenizer, with a chat template.
        model_name: the name requests must give; the model's own by default.
        max_context: prompt and completion tokens together, at most; the model's position limit by default.
        max_batch_size: sequences decoded at once; more are done in turns.
        seed: of the random numbers that sampling uses; None: torch's global generator.

    Raises:
        InputError: the tokenizer has no chat template.
    """

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
        self.token_text = TokenText(tokenizer)
        self.end_ids = end_ids(model, tokenizer)
        self.seed = seed
        self._generator: torch.Generator | None = None
        self._weights = threading.RLock()
        self._cancelled = threading.Event()
        self._prompts: dict[str, list[int]] = {}

    def cancel(self) -> None:
        """Make a running `generate` raise `EngineError` at the next token, and later calls at once, until `resume`."""
        self._cancelled.set()

    def resume(self) -> None:
        """Generate again after `cancel`."""
        self._cancelled.clear()

    def prompt_ids(self, request: ChatRequest) -> list[int]:
        """The request's prompt as token ids, through the chat template.

        Raises:
            BadRequest: it names another model, the template refuses the messages, or the context is too short.
        """
        if request.model and request.model != self.model_name:
            raise BadRequest(
                f"the model {request.model!r} does not exist; this engine serves {self.model_name!r}", 404, "model"
            )
        key = json.dumps(request.messages)
        if len(key) > _CHARACTERS_PER_TOKEN * self.max_context:  # tokenising megabytes would take seconds
            raise BadRequest(
                f"the prompt has {len(key)} characters, which is longer than the model's context length "
                f"{self.max_context}",
                param="messages",
            )
        ids = self._prompts.get(key)
        if ids is None:
            try:
                ids = self.tokenizer.apply_chat_template(
                    request.messages, add_generation_prompt=True, return_dict=False
                )
            except Exception as error:  # a Jinja error of whatever kind the template raises
                raise BadRequest(f"the chat template refuses these messages: {error}", param="messages") from error
            if len(self._prompts) >= 4096:
                self._prompts.clear()
            if len(key) < 16_384:  # what repeats are training prompts, not documents
                self._prompts[key] = ids
        if len(ids) >= self.max_context:
            # verifiers knows these words and turns them into a truncated rollout, as it does for vLLM's
            raise BadRequest(
                f"the prompt has {len(ids)} tokens, which is longer than the model's context length {self.max_context}",
                param="messages",
            )
        if request.max_tokens and len(ids) + request.max_tokens > self.max_context:
            raise BadRequest(
                f"max_tokens={request.max_tokens} is too large: the prompt has {len(ids)} tokens and the context "
                f"{self.max_context}",
                param="max_tokens",
            )
        return ids

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Sample a completion for each prompt (token ids), in order. Equal prompts are prefilled once.

        Raises:
            InputError: a prompt leaves no room in the context.
            EngineError: the model failed, or `cancel` was called.
        """
        if prompts and (longest := max(map(len, prompts))) >= self.max_context:
            raise InputError(f"a prompt has {longest} tokens, and the context of the model {self.max_context}")
        jobs = [_Job(list(prompt), sampling, self._room(len(prompt), sampling.max_tokens)) for prompt in prompts]
        self._run_all(jobs)
        return [Completion(job.ids, job.logprobs, "stop" if job.stopped else "length") for job in jobs]

    def chat(self, requests: Sequence[ChatRequest]) -> list[list[Generation]]:
        """Sample `request.n` completions for each chat request, in order.

        Raises:
            BadRequest: a request cannot be answered; nothing was generated.
            EngineError: the model failed, or `cancel` was called.
        """
        prompts = [self.prompt_ids(request) for request in requests]
        jobs = [
            _Job(prompt, request.sampling, self._room(len(prompt), request.max_tokens))
            for request, prompt in zip(requests, prompts, strict=True)
            for _ in range(request.n)
        ]
        self._run_all(jobs)
        texts = self._texts(jobs, [r.skip_special_tokens for r in requests for _ in range(r.n)])
        finished = iter(
            Generation(job.ids, job.logprobs, "stop" if job.stopped else "length", text)
            for job, text in zip(jobs, texts, strict=True)
        )
        return [[next(finished) for _ in range(request.n)] for request in requests]

    def _room(self, prompt_tokens: int, max_tokens: int | None) -> int:
        return min(max_tokens or self.max_context, self.max_context - prompt_tokens)

    def _run_all(self, jobs: "list[_Job]") -> None:
        # Prompts of similar length share a turn, for less padding; within equal lengths, equal prompts are adjacent.
        order = sorted(range(len(jobs)), key=lambda i: (len(jobs[i].prompt), jobs[i].prompt))
        with self._weights, self._evaluating(), self._threads():
            for start in range(0, len(order), self.max_batch_size):
                try:
                    self._run([jobs[i] for i in order[start : start + self.max_batch_size]])
                except (EngineError, KeyboardInterrupt):
                    raise
                except Exception as error:
                    raise EngineError(f"generation failed: {type(error).__name__}: {error}") from error

    @property
    def generator(self) -> torch.Generator | None:
        """Where sampling gets its random numbers; made when first used, for the device the model is on by then."""
        if self._generator is None and self.seed is not None:
            self._generator = torch.Generator(device=self.model.device).manual_seed(self.seed)
        return self._generator

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Dropout off and no gradients, then everything as it was."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.model.train(training)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """One thread for small models on a CPU: a decode step's products are too small to be worth sharing out."""
        before = torch.get_num_threads()
        if self.model.device.type == "cpu" and self.config.hidden_size < _SHARED_FROM_HIDDEN:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _run(self, jobs: "list[_Job]") -> None:
        """Generate for one batch of jobs and fill in their results."""
        device = self.model.device
        distinct = {tuple(job.prompt): None for job in jobs}
        row_of = {prompt: row for row, prompt in enumerate(distinct)}
        rows = torch.tensor([row_of[tuple(job.prompt)] for job in jobs], device=device)
        width = max(map(len, distinct))
        ids, valid = _left_padded([list(prompt) for prompt in distinct], width, device)
        longest = max(job.max_tokens for job in jobs)
        cache = GrowingCache(self.config, width + min(longest, _CACHE_BLOCK))

        with decoding_attention(self.config) as fast:
            logits = self._forward(ids, valid, valid.cumsum(1) - 1, cache, fast)
            cache.select(rows)  # the shared prompts, once for each of their completions
            logits, valid = logits[rows], valid[rows]
            position = valid.sum(1)
            valid = torch.cat([valid, valid.new_ones(len(jobs), longest)], dim=1)
            sampler = Sampler(
                [j.sampling for j in jobs], [j.prompt for j in jobs], logits.shape[1], device, self.generator
            )
            ends = torch.tensor(sorted(self.end_ids), device=device)
            limits = torch.tensor([job.max_tokens for job in jobs], device=device)
            # Results stay on the device until the end: reading them back step by step would stall an accelerator.
            all_ids, all_logprobs = (
                ids.new_zeros(len(jobs), longest),
                logits.new_zeros(len(jobs), longest, dtype=torch.float32),
            )
            lengths = torch.zeros(len(jobs), dtype=torch.long, device=device)
            active = torch.arange(len(jobs), device=device)  # row of the batch -> job
            running = torch.ones(len(jobs), dtype=torch.bool, device=device)
            for step in range(longest):
                if self._cancelled.is_set():
                    raise EngineError("generation was cancelled")
                tokens, logprobs = sampler.draw(logits)
                all_ids[active, step], all_logprobs[active, step] = tokens, logprobs
                lengths[active] += running
                running = running & ~torch.isin(tokens, ends) & (step + 1 < limits)
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
        for job, row, logprob, length in zip(
            jobs, all_ids.tolist(), all_logprobs.tolist(), lengths.tolist(), strict=True
        ):
            job.ids, job.logprobs = row[:length], logprob[:length]
            job.stopped = job.ids[-1] in self.end_ids

    def _forward(
        self, ids: torch.Tensor, valid: torch.Tensor, positions: torch.Tensor, cache: GrowingCache, fast: bool
    ) -> torch.Tensor:
        """Logits `(B, V)` of the position after `ids (B, L)`; `valid (B, total) bool` marks everything but padding."""
        mask = valid
        if fast:  # transformers takes a ready 4-D mask as it is, and spends a millisecond a step on making one
            mask = valid[:, None, None, :]
            if ids.shape[1] > 1:
                causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device)
                # Padding attends itself: a row with nothing to attend gives NaN, which would spread.
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

    def _texts(self, jobs: "list[_Job]", skip_special: list[bool]) -> list[str]:
        """Each job's text without its end token."""
        texts = [""] * len(jobs)
        for skip in set(skip_special):
            chosen = [i for i, s in enumerate(skip_special) if s is skip]
            ids = [jobs[i].ids[:-1] if jobs[i].stopped else jobs[i].ids for i in chosen]
            decoded = self.tokenizer.batch_decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            for i, text in zip(chosen, decoded, strict=True):
                texts[i] = text
        return texts


class _Job:
    """One completion in the making."""

    def __init__(self, prompt: list[int], sampling: Sampling, max_tokens: int):
        self.prompt, self.sampling, self.max_tokens = prompt, sampling, max_tokens
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.stopped = False


def _left_padded(rows: list[list[int]], width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids `(B, width) int64`, padded on the left, and which of them are real, `(B, width) bool`."""
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
    valid = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows], device=device)
    return ids, valid


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All tokens that end a completion: the tokenizer's, and those of the generation config (Llama 3 has three)."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ends = set(configured) if isinstance(configured, list | tuple) else {configured}
    return frozenset(int(token) for token in ends | {tokenizer.eos_token_id} if token is not None)
