"""Bringing a `vf-vllm` server's weights up to the trainer's, and proving that they are.

`WeightSync` is what the trainer has, on all processes: they gather sharded weights together, the main one sends them
(`weight_line`). An error on the main process is raised on all. After the first sync, and every so often, the server's
log-probabilities of a fixed prompt are compared with the model's own: weights that arrived wrong, not at all, or in the
wrong place stop the run, where they would only have made it learn worse.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from rg_env.errors import ServerError, TrainingError
from rg_env.training.collective import on_main
from rg_env.training.weight_line import WeightLine
from rg_env.training.weight_sources import BUCKET_BYTES, buckets, gathered, sources

SHAPE = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
PROOF_TOKENS = 64
TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.15, torch.float16: 0.05}
"""Mean absolute difference of log-probabilities that two implementations of a model may have, by the server's type."""


def shape_of(model: PreTrainedModel) -> dict[str, int | None]:
    """Sizes that tell one model from another."""
    config = model.config.get_text_config(decoder=True)
    return {name: getattr(config, name, None) for name in SHAPE}


class WeightSync:
    """Keeps a server's weights equal to `model`'s.

    Args:
        line: to the server; None on processes other than the main one.
        model: unwrapped; with PEFT or without.
        proof: token ids of a prompt, the same on all processes.
        served: the name under which the server serves the model.
        check_every: syncs between two proofs; 0: only the first is proven.
        tolerance: see `TOLERANCE`; None: by the server's type.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        line: WeightLine | None,
        model: PreTrainedModel,
        *,
        proof: list[int],
        served: str,
        zero3: bool,
        check_every: int = 50,
        tolerance: float | None = None,
    ):
        self._accelerator, self._line, self._model = accelerator, line, model
        self._proof, self._served, self._zero3 = proof[:PROOF_TOKENS], served, zero3
        self._check_every, self._tolerance = check_every, tolerance
        self.count = 0
        """Syncs done."""
        self.seconds = 0.0
        """What the last one took."""
        self.difference: float | None = None
        """Mean absolute difference of log-probabilities at the last proof."""

    def run(self) -> None:
        """Send the weights: all of them the first time, then those that training changes.

        Raises:
            TrainingError: they did not arrive; `StoppedTogether` where there are several processes.
        """
        start = time.monotonic()
        complete = self.count == 0
        failure: Exception | None = None
        for bucket in buckets(sources(self._model, only_trained=not complete), BUCKET_BYTES):
            # After a failure the others are not left alone in the gathering.
            with gathered(bucket, self._zero3), torch.no_grad():
                if self._line is not None and failure is None:
                    try:
                        self._line.send([(source.name, source.tensor()) for source in bucket])
                    except Exception as error:
                        failure = error
        on_main(self._accelerator, lambda: self._finish(complete, failure))
        if complete or (self._check_every and self.count % self._check_every == 0):
            self._prove()
        self.count += 1
        self.seconds = time.monotonic() - start

    def close(self) -> None:
        """Take leave of the server."""
        if self._line is not None:
            self._line.close()

    def _finish(self, complete: bool, failure: Exception | None) -> None:
        assert self._line is not None
        with _in_a_run():
            if failure is not None:
                raise failure
            self._line.finish(complete)

    def _prove(self) -> None:
        ours = model_logprobs(self._model, self._proof, self._accelerator.device)  # a collective act under ZeRO-3
        self.difference = on_main(self._accelerator, lambda: self._compare(ours))

    def _compare(self, ours: torch.Tensor) -> float:
        assert self._line is not None
        with _in_a_run():
            theirs = torch.tensor(self._line.server.logprobs(self._served, self._proof))
        difference = float((ours - theirs).abs().mean())
        tolerance = TOLERANCE.get(self._line.dtype, 0.15) if self._tolerance is None else self._tolerance
        if not difference <= tolerance:  # NaN included
            raise TrainingError(
                f"the server at {self._line.server} does not compute what the trainer does: after sync {self.count} "
                f"the log-probabilities of a prompt differ by {difference:.3g} on average (tolerance {tolerance:g}): "
                "its weights are not those that were sent"
            )
        return difference


@contextmanager
def _in_a_run() -> Iterator[None]:
    """Within: a server that is gone ends a run; before one has begun it would be bad input, with another exit code."""
    try:
        yield
    except ServerError as error:
        raise TrainingError(str(error)) from error


def model_logprobs(model: Any, ids: list[int], device: torch.device) -> torch.Tensor:
    """Log-probabilities (L - 1,) float32 on the CPU of `ids` (L,)[1:], each given what precedes it; no temperature."""
    tokens = torch.tensor([ids], device=device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    finally:
        model.train(training)
    return torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None])[:, 0].cpu()
