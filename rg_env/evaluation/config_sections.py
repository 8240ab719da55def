"""Sections of an evaluation's config: how it is made, whatever is asked. Models and tasks stand in `config`."""

from typing import Annotated, Literal

from pydantic import Field

from rg_env.core.config import Section
from rg_env.core.config_sections import Above0, Count, From0, Positive, Text

TopP = Annotated[float, Field(gt=0, le=1)]


class SamplingConfig(Section):
    """How answers are drawn."""

    temperature: From0 = 1.0
    """0: the likeliest token each time."""
    top_p: TopP = 1.0
    """Tokens are drawn from the likeliest ones that have so much of the probability together."""
    max_tokens: Positive = 1024
    """New tokens at most."""


class TaskSampling(Section):
    """What is another for one task; the rest is as in `sampling`."""

    temperature: From0 | None = None
    """As there."""
    top_p: TopP | None = None
    """As there."""
    max_tokens: Positive | None = None
    """As there."""


class RequestsConfig(Section):
    """How endpoints are asked."""

    concurrency: Positive = 64
    """Calls under way at once, of each model."""
    timeout_s: Above0 = 600.0
    """For one call."""
    tries: Positive = 6
    """Of a call that was refused for now (429, 5xx), timed out or came back damaged; then it counts as failed."""


class ServingConfig(Section):
    """What serves the models that have no `url`."""

    kind: Literal["auto", "embedded", "vllm"] = "auto"
    """"vllm": a server of its own for each, one a GPU; "embedded": transformers, in this process; "auto": vLLM where it
    is installed and there is a GPU."""
    gpus: list[Count] | None = None
    """Default: all. Each serves one model at a time; the next one takes what is left."""
    vllm_args: list[Text] = Field(default_factory=list)
    """More arguments for vLLM's server."""
    start_timeout_s: Above0 = 900.0
    """Until a server must answer."""


class ExternalConfig(Section):
    """Benchmarks of lm-evaluation-harness, beside the tasks or alone."""

    tasks: list[Text] = Field(default_factory=list)
    """Names of its tasks and groups, or of those in `configs/lm_eval`, which rg_env comes with, and in `include`; all
    must ask for an answer."""
    include: Text | None = None
    """Folder of more task files, in lm-eval's form. Code that they name (`!function`) is run."""
    num_examples: Positive | None = None
    """So many, the first ones, of each task that a benchmark is made of; default: all."""
    temperature: From0 | None = None
    """As `sampling.temperature`; default, like the next two: the task's own."""
    top_p: TopP | None = None
    """As `sampling.top_p`."""
    max_tokens: Positive | None = None
    """New tokens at most; where the task says nothing: `sampling.max_tokens`."""


class EvalOutputConfig(Section):
    """Where the files go."""

    dir: Text | None = None
    """Default: a fresh folder under outputs/."""
