"""The embedded engine generates completions in-process with a transformers model. During training, this is the
trainer's model.

    engine = EmbeddedEngine(model, tokenizer, seed=0)
    completions = engine.generate(prompts, Sampling(temperature=1.0, max_tokens=256))    # token ids in, token ids out

Weights are shared with the trainer, so they do not need to be synchronized. The prompts in a call form one batch, or
several if there are more than `max_batch_size`. The start that all prompts in a batch share is prefilled once, and the
rest of each distinct prompt once for all of its completions. Finished sequences leave the batch. The engine runs on any
torch device (CPU, CUDA, Apple MPS) and does not need vLLM. The engine is not suitable for serving many users, because
it has no paging, continuous batching or sharding across devices.

Log-probabilities are those of the distribution that tokens are sampled from (after penalties, temperature and
truncation), as with vLLM's `logprobs_mode="processed_logprobs"`. With greedy sampling, log-probabilities are computed
at temperature 1.
"""

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, StopStringCriteria

from rg_env.errors import EngineError, InputError
from rg_env.inference.chat_templates import end_ids, require_chat_template
from rg_env.inference.embedded.kv_cache import GrowingCache, decoding_attention
from rg_env.inference.protocol import Completion, Engine, Sampling, context_length, kv_width

_CACHE_BLOCK = 64  # initial cache capacity beyond the prompt, in tokens; it grows as needed
_SHARED_FROM_TOKENS = 16  # computing a shorter start apart would cost as much as it saves
_SHARED_FROM_HIDDEN = 512  # multi-threaded decoding is faster at this hidden size and above
_GREEDY_BELOW = 1e-5  # as in vLLM; dividing logits by a lower temperature could overflow
_CHECK_EVERY = 16  # tokens between checks on an accelerator, because each check waits for the device
_TRIAL_TOKENS = (3, 8)  # lengths of the prompts on which the constructor tries the model
_TRIAL_TOLERANCE = 0.3  # in nats; more than the rounding error of bfloat16
_SHRINK_AT = 0.8  # the batch is compacted when less than this fraction of its rows are still running


def sequences_that_fit(model: PreTrainedModel, tokens: int, most: int) -> int:
    """Return the number of sequences of `tokens` tokens (prompt and completion) whose keys and values fit in a quarter
    of the free memory of a CPU: a power of two of at most `most`, and at least 16."""
    config = model.config.get_text_config(decoder=True)
    each = 2 * config.num_hidden_layers * kv_width(config) * model.dtype.itemsize * tokens
    room = psutil.virtual_memory().available // 4
    return max(
        (size for size in (2**power for power in range(4, 20)) if size <= most and size * each <= room), default=16
    )


class EmbeddedEngine(Engine):
    """Generates completions with `model`.

    Args:
        model: a transformers causal language model, on one device. PEFT-wrapped models are supported.
        tokenizer: the model's tokenizer, with a chat template.
        max_batch_size: maximum number of sequences decoded concurrently. Larger batches are split.
        seed: sampling seed. None uses torch's global generator.
        autocast: data type to which autocast casts float32 weights and activations, as in a trainer with mixed
            precision. None computes in the weights' own data type.

    Raises:
        InputError: the tokenizer has no chat template, or this engine does not support the model's architecture.
    """

    name = "embedded"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_batch_size: int = 512,
        seed: int | None = None,
        autocast: torch.dtype | None = None,
    ):
        require_chat_template(tokenizer)
        self.model, self.autocast = model, autocast
        self.config = model.config.get_text_config(decoder=True)
        self.max_context = context_length(model.config, tokenizer)
        self._base = model.get_base_model() if hasattr(model, "peft_config") else model
        self._accepted = inspect.signature(type(self._base).forward).parameters  # not wrapped by accelerate
        # Renamed to "cache" in transformers 5.24. Mamba models have a name of their own.
        names = ("cache", "past_key_values", "cache_params")
        self._cache_name = next((name for name in names if name in self._accepted), "")
        self.max_batch_size = max_batch_size
        self.end_ids = end_ids(model, tokenizer)
        self._tokenizer = tokenizer
        self._stop_criteria: dict[tuple[str, ...], StopStringCriteria] = {}
        self._seed = seed
        self._generator: torch.Generator | None = None
        self._one_at_a_time = threading.RLock()
        self._cancelled = threading.Event()
        if problem := self._problem(tokenizer):
            fix = "use vLLM (engine.kind: vllm in training, serving.kind: vllm in evaluations)"
            fix += ", or other lora.target_modules" if self._base is not model else ""
            raise InputError(f"the embedded engine cannot generate with {type(self._base).__name__}: {problem}; {fix}")

    def cancel(self) -> None:
        """Make running calls to `generate` raise `EngineError` at the next token. New calls also raise this error until
        `resume` is called."""
        self._cancelled.set()

    def resume(self) -> None:
        """Allow generation again after `cancel`."""
        self._cancelled.clear()

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Sample a completion for each prompt (token ids), in order.

        Raises:
            InputError: a prompt leaves no room in the context for a completion, or has tokens of another model.
            EngineError: the model failed, or `cancel` was called.
        """
        if prompts and (longest := max(map(len, prompts))) >= self.max_context:
            raise InputError(f"a prompt has {longest} tokens, but the model's context length is {self.max_context}")
        if (token := max(map(max, filter(None, prompts)), default=0)) >= (size := self.config.vocab_size):
            raise InputError(
                f"a prompt has the token id {token}, but the model has {size} tokens: use its own tokenizer"
            )
        # Sort by length so that prompts in a batch need little padding, then by content so that identical prompts are
        # adjacent.
        order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), list(prompts[i])))
        completions: dict[int, Completion] = {}
        with self._running():
            for start in range(0, len(order), self.max_batch_size):
                turn = order[start : start + self.max_batch_size]
                completions |= zip(turn, self._batch([tuple(prompts[i]) for i in turn], sampling), strict=True)
        return [completions[i] for i in range(len(prompts))]

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

    def _problem(self, tokenizer: PreTrainedTokenizerBase) -> str | None:
        """Return the reason this engine cannot generate with the model, or None. Some models keep their state outside
        transformers' cache, or derive positions from padding, so a few tokens are generated and compared with a forward
        pass without cache or padding."""
        if not self._cache_name:
            return "its forward pass does not accept a cache"
        ids = tokenizer("What is 2 + 3? Think step by step.")["input_ids"][: _TRIAL_TOKENS[1]]
        short = ids[: _TRIAL_TOKENS[0]]
        try:
            with self.aside():
                *_, got = self.generate([ids, short], Sampling(temperature=0.0, max_tokens=3))
            with self._running():
                row = torch.tensor([short + got.token_ids], device=self.model.device)
                logprobs = self.model(row).logits[0, len(short) - 1 : -1].float().log_softmax(-1)
        except EngineError as error:
            return str(error.__cause__)
        expected = logprobs.gather(1, row[0, len(short) :, None])[:, 0].cpu()
        difference = float((expected - torch.tensor(got.logprobs)).abs().mean())
        if difference > _TRIAL_TOLERANCE:
            return f"with cache and padding, log-probabilities differ by {difference:.2g} from those of a forward pass"
        return None

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
                with self._without_gradients():
                    yield
            except EngineError:
                raise
            except Exception as error:
                raise EngineError(f"generation failed: {type(error).__name__}: {error}") from error
            finally:
                self.model.train(training)
                torch.set_num_threads(threads)

    @contextmanager
    def _without_gradients(self) -> Iterator[None]:
        """Within this context, no gradients are recorded, and autocast casts each weight once instead of once per
        token."""
        if self.autocast is None:
            with torch.inference_mode():
                yield
            return
        # Autocast keeps a cast until the outermost autocast context ends, but not in inference mode, and only for
        # weights that require a gradient.
        frozen = [each for each in self.model.parameters() if each.is_floating_point() and not each.requires_grad]
        try:
            with torch.no_grad(), torch.autocast(self.model.device.type, dtype=self.autocast):
                for parameter in frozen:
                    parameter.requires_grad_(True)
                yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)

    def _batch(self, prompts: Sequence[tuple[int, ...]], sampling: Sampling) -> list[Completion]:
        """Generate one batch."""
        device = self.model.device
        distinct = list(dict.fromkeys(prompts))
        row_of = {prompt: row for row, prompt in enumerate(distinct)}
        rows = torch.tensor([row_of[prompt] for prompt in prompts], device=device)
        width = max(map(len, distinct))
        rooms = [min(sampling.max_tokens or self.max_context, self.max_context - len(prompt)) for prompt in prompts]
        longest = max(rooms)
        check_every = 1 if device.type == "cpu" else _CHECK_EVERY
        cache = GrowingCache(self.config, width + min(longest, _CACHE_BLOCK))

        with decoding_attention(self.model) as fast:
            # The start that all prompts share (a system prompt, few-shot examples) is computed once. Each prompt is
            # padded on the left, after this start.
            start = common_start([prompt[:-1] for prompt in distinct])
            start = start if fast and len(distinct) > 1 and start >= _SHARED_FROM_TOKENS else 0
            missing = [width - len(prompt) for prompt in distinct]
            padded = [(*row[:start], *[0] * n, *row[start:]) for n, row in zip(missing, distinct, strict=True)]
            ids, columns = torch.tensor(padded, device=device), torch.arange(width, device=device)
            valid = (columns < start) | (columns >= start + torch.tensor(missing, device=device).unsqueeze(1))
            positions = valid.cumsum(1) - 1
            if start:
                self._forward(ids[:1, :start], valid[:1, :start], positions[:1, :start], cache, fast)
                cache.reorder_cache(torch.zeros(len(distinct), dtype=torch.long, device=device))
            logits = self._forward(ids[:, start:], valid, positions[:, start:], cache, fast)
            cache.reorder_cache(rows)  # repeats each shared prompt for its completions
            logits, valid = logits[rows], valid[rows]
            position = valid.sum(1)
            valid = torch.cat([valid, valid.new_ones(len(prompts), longest)], dim=1)
            sampler = Sampler(sampling, prompts, logits.shape[1], device, self.generator)
            ends = torch.tensor(sorted(self.end_ids), dtype=torch.long, device=device)
            limits = torch.tensor(rooms, device=device)
            stop_criterion = self._stop_criterion(sampling.stop)
            # Results stay on the device until the end because copying them at each step would stall an accelerator.
            all_ids = ids.new_zeros(len(prompts), longest)
            all_logprobs = logits.new_zeros(len(prompts), longest, dtype=torch.float32)
            lengths = torch.zeros(len(prompts), dtype=torch.long, device=device)
            stopped = torch.zeros(len(prompts), dtype=torch.bool, device=device)
            active = torch.arange(len(prompts), device=device)  # index of each row's prompt
            running = torch.ones(len(prompts), dtype=torch.bool, device=device)
            for step in range(longest):
                if self._cancelled.is_set():
                    raise EngineError("generation was cancelled")
                tokens, logprobs = sampler.draw(logits)
                all_ids[active, step], all_logprobs[active, step] = tokens, logprobs
                lengths[active] += running
                stops = torch.isin(tokens, ends)
                if stop_criterion is not None:
                    since = max(0, step + 1 - stop_criterion.maximum_token_len)
                    stops |= stop_criterion(all_ids[active, since : step + 1], None)
                stopped[active] |= running & stops
                running = running & ~stops & (step + 1 < limits)
                left = len(running) if (step + 1) % check_every else int(running.sum())
                if left == 0 or step + 1 == longest:
                    break
                if left < _SHRINK_AT * len(running):
                    rows = running.nonzero().squeeze(1)
                    cache.reorder_cache(rows)
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

    def _stop_criterion(self, stop: tuple[str, ...]) -> StopStringCriteria | None:
        """Return a function that finds the rows of tokens that have just completed a text in `stop`."""
        if stop and stop not in self._stop_criteria:
            self._stop_criteria[stop] = StopStringCriteria(self._tokenizer, list(stop))
        return self._stop_criteria.get(stop)

    def _forward(
        self, ids: torch.Tensor, valid: torch.Tensor, positions: torch.Tensor, cache: GrowingCache, fast: bool
    ) -> torch.Tensor:
        """Compute logits `(B, V)` for the position after `ids (B, L)`. `valid (B, total) bool` is False for padding."""
        mask = valid
        if fast:  # transformers uses a 4-D mask as is; building its own mask would take a millisecond per step
            mask = valid[:, None, None, :]
            if ids.shape[1] > 1:
                before = valid.shape[1] - ids.shape[1]  # number of tokens in the cache
                causal = torch.ones(ids.shape[1], valid.shape[1], dtype=torch.bool, device=ids.device).tril(before)
                # Let padding attend to itself. A position that attended to nothing would yield NaN, which would
                # spread to other positions.
                mask = (mask & causal) | causal.triu(before)
        # Finished rows may reach the end of the context.
        inputs = {"position_ids": positions.clamp(0, self.max_context - 1), "logits_to_keep": 1}
        output = self.model(
            input_ids=ids,
            attention_mask=mask if fast else mask.long(),
            use_cache=True,
            **{self._cache_name: cache},
            **{name: value for name, value in inputs.items() if name in self._accepted},
        )
        return output.logits[:, -1]


def common_start(sequences: Sequence[tuple[int, ...]]) -> int:
    """Return the number of tokens that all sequences start with."""
    low, high = min(sequences), max(sequences)  # in lexicographic order, so the others share what these two share
    return next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))


def round_linear_layers(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights of linear layers to `dtype`, to save memory in a model that is not trained. Under autocast,
    the results do not change, because autocast converts the same weights. An embedding that is tied to the LM head
    keeps its data type."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            for name, parameter in layer.named_parameters(recurse=False):
                if parameter.dtype == torch.float32:
                    setattr(layer, name, nn.Parameter(parameter.detach().to(dtype), requires_grad=False))


class Sampler:
    """Draws one token per row at each step.

    Args:
        prompts: the prompt (token ids) of each row, to which the repetition penalty applies.
        vocab_size: number of logits per row.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        vocab_size: int,
        device: torch.device,
        generator: torch.Generator | None = None,
    ):
        self.sampling, self.generator = sampling, generator
        self.greedy = sampling.temperature < _GREEDY_BELOW
        rows = len(prompts) if sampling.penalized else 0
        self.counts = torch.zeros(rows, vocab_size, dtype=torch.int32, device=device)
        """Each token's count in the completion so far, `(B, V)`. Used only for penalties, as `in_prompt`."""
        self.in_prompt = torch.zeros(rows, vocab_size, dtype=torch.bool, device=device)
        """Whether each token is in the prompt, `(B, V)`."""
        for row, prompt in enumerate(prompts[:rows]):
            self.in_prompt[row, list(prompt)] = True

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only `rows` (indices into the current rows)."""
        if self.sampling.penalized:
            self.counts, self.in_prompt = self.counts[rows], self.in_prompt[rows]

    def draw(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample tokens `(B,) int64` from `logits (B, V)`, and return them with their log-probabilities `(B,)
        float32`."""
        logits = self._penalize(logits.float())
        if not self.greedy:
            logits = self._truncate(logits / self.sampling.temperature)
        logprobs = torch.log_softmax(logits, dim=-1)
        if self.greedy:
            tokens = logprobs.argmax(dim=-1, keepdim=True)
        else:
            # Inverse-CDF sampling needs one random number per row instead of one per vocabulary entry.
            cdf = logprobs.exp().cumsum_(dim=-1)
            uniform = torch.rand(cdf.shape[0], 1, generator=self.generator, dtype=cdf.dtype, device=cdf.device)
            # With right=True, a token of probability 0 is never selected. The clamp handles rounding at the upper end.
            tokens = torch.searchsorted(cdf, uniform * cdf[:, -1:], right=True).clamp_(max=cdf.shape[1] - 1)
        if self.sampling.penalized:
            self.counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=torch.int32))
        return tokens.squeeze(1), logprobs.gather(1, tokens).squeeze(1)

    def _penalize(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.sampling.penalized:
            return logits
        # The repetition penalty considers the prompt and the completion (Keskar et al., 2019). The presence and
        # frequency penalties consider only the completion, as in OpenAI's API.
        penalty = self.sampling.repetition_penalty
        repeated = torch.where(logits > 0, logits / penalty, logits * penalty)
        logits = torch.where((self.counts > 0) | self.in_prompt, repeated, logits)
        presence, frequency = self.sampling.presence_penalty, self.sampling.frequency_penalty
        return logits - presence * (self.counts > 0) - frequency * self.counts

    def _truncate(self, logits: torch.Tensor) -> torch.Tensor:
        top_k, top_p, min_p = self.sampling.top_k, self.sampling.top_p, self.sampling.min_p
        if top_k <= 0 and top_p >= 1 and min_p <= 0:
            return logits
        ordered, order = logits.sort(dim=-1, descending=True)
        drop = torch.zeros_like(ordered, dtype=torch.bool)
        if top_k > 0:
            drop[:, top_k:] = True
        probs = ordered.masked_fill(drop, -torch.inf).softmax(dim=-1)
        if top_p < 1:
            drop |= probs.cumsum(dim=-1) - probs >= top_p  # keep the token that crosses the threshold
            probs = ordered.masked_fill(drop, -torch.inf).softmax(dim=-1)
        drop |= probs < min_p * probs[:, :1]
        drop[:, 0] = False
        return logits.masked_fill(torch.zeros_like(drop).scatter(1, order, drop), -torch.inf)
