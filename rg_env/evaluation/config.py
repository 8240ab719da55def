"""The schema for evaluation configs (the files in `configs/eval/`), with methods that derive plans and arguments from a
config. `evaluation.load` reads and checks configs.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from rg_env.core.config import parsing
from rg_env.core.config.parsing import Positive, Section, Text, named
from rg_env.core.data.splits import SplitBy
from rg_env.core.data.user_rows import DataConfig
from rg_env.core.run_folder import RunFolder, checkpoint_step, is_missing_folder
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import load_table
from rg_env.core.text import counted
from rg_env.tiny import TASKS as TINY_TASKS
from rg_env.tiny import TINY

TopP = Annotated[float, Field(gt=0, le=1)]


class SamplingConfig(Section):
    """Settings for sampling answers. Keys that are not set default to the settings from a model's training run if there
    is one."""

    temperature: parsing.From0 = 1.0
    """Sampling temperature. 0 means greedy decoding."""
    top_p: TopP = 1.0
    """Nucleus sampling: tokens are sampled from the smallest set of most likely tokens whose total probability is at
    least this value."""
    max_tokens: Positive = 1024
    """Maximum number of new tokens per answer."""
    top_k: parsing.Count = 0
    """Top-k sampling: tokens are sampled only from the `top_k` most likely tokens. 0 turns it off."""
    min_p: parsing.Share = 0.0
    """Min-p sampling: tokens whose probability is below this fraction of the most likely token's probability are
    excluded. 0 turns it off."""
    repetition_penalty: parsing.Above0 = 1.0
    """Multiplicative penalty on tokens that occur in the prompt or in the answer so far. 1 turns it off."""
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Penalty subtracted from the logits of tokens that occur in the answer so far. 0 turns it off."""
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    """Penalty subtracted from a token's logit for each occurrence in the answer so far. 0 turns it off."""
    stop: Annotated[tuple[Text, ...], Field(strict=False)] = ()
    """Texts that end an answer. The text is part of the answer, unless an endpoint removes it. Default: only the
    model's end-of-sequence tokens end an answer."""


class TaskSampling(Section):
    """Sampling settings for one task. Keys that are not set default to the values in the config's `sampling`
    section."""

    temperature: parsing.From0 | None = None
    """Sampling temperature for this task. Default: `sampling.temperature`."""
    top_p: TopP | None = None
    """Nucleus sampling threshold for this task. Default: `sampling.top_p`."""
    max_tokens: Positive | None = None
    """Maximum number of new tokens per answer to this task. Default: `sampling.max_tokens`."""


class RequestsConfig(Section):
    """Settings for calls to endpoints."""

    concurrency: Positive = 64
    """Maximum number of concurrent calls per model. If several vLLM servers serve the model, the limit applies to each
    server."""
    timeout_s: parsing.Above0 = 600.0
    """Timeout for each attempt at a call, in seconds."""
    tries: Positive = 6
    """Maximum number of attempts per call. Calls are retried after temporary HTTP errors (such as 429 and 5xx),
    timeouts, broken connections and malformed replies."""
    pause_s: parsing.Above0 = 0.5
    """Seconds to wait before the second attempt. The pause doubles after each further attempt. If the server requests a
    pause, that pause is used instead. Each pause is capped at 60 seconds and then varied randomly by up to 25%."""
    give_up_after: Positive = 32
    """Number of consecutive failed calls after which a model's evaluation stops."""


class ServingConfig(Section):
    """Settings for serving models that have no `url`."""

    kind: Literal["auto", "embedded", "vllm"] = "auto"
    """"vllm" starts vLLM servers, each of which serves one model on one GPU. "embedded" runs models with transformers
    in this process. "auto" uses vLLM if it is installed and there is a GPU, and the embedded engine otherwise."""
    gpus: list[parsing.Count] | None = None
    """Indices of the GPUs to use for vLLM servers. Each GPU serves one model at a time. Default: all GPUs."""
    vllm_args: list[Text] = Field(default_factory=list)
    """Additional command-line arguments for vLLM servers."""
    start_timeout_s: parsing.Above0 = 900.0
    """Maximum time to wait for a server to become ready, in seconds."""


class EvalOutputConfig(Section):
    """Output files."""

    dir: Text | None = None
    """Output folder. Default: a new folder under outputs/."""


def split_address(text: str) -> dict[str, str]:
    """Parse `MODEL`, or `MODEL@URL` for an endpoint, into an entry for `models`."""
    model, at, url = text.rpartition("@http")
    return {"model": model, "url": f"http{url}"} if at else {"model": text}


def name_of(text: str) -> str:
    """Return a model's default name: the name of its folder (RUN/CHECKPOINT for a checkpoint), or the model as given if
    it is not a folder."""
    model = split_address(text)["model"]
    parts = Path(model).parts
    if len(parts) > 1 and checkpoint_step(Path(parts[-1])) is not None:
        return "/".join(parts[-2:])
    return parts[-1] if parts and (os.path.exists(model) or is_missing_folder(model)) else model


def run_of(model: str) -> RunFolder | None:
    """Return the training run that a model folder belongs to, if any. The run's files are in the model folder, in its
    subfolder `run/` (if `rg-env push` published the model), or in its parent folder."""
    folder = Path(model)
    if not os.path.isdir(model) or not (
        RunFolder.is_run(folder) or any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
    ):
        return None
    runs = map(RunFolder, (folder, folder / "run", folder.absolute().parent))
    return next((run for run in runs if run.manifest_file.is_file() or run.config_file.is_file()), None)


class Price(Section):
    """Prices are per million tokens, in any currency."""

    input: parsing.From0
    """Price per million prompt tokens."""
    output: parsing.From0
    """Price per million answer tokens."""


class EvalModel(Section):
    """The key of an entry is the model's name in tables and plots."""

    model: Text
    """Folder of a model, checkpoint or LoRA adapter; GGUF file; folder of a training run, whose last checkpoint is
    used; name of a model on the Hugging Face Hub; "tiny"; or, if `url` is set, the model's name at that endpoint."""
    url: Text | None = None
    """URL of an OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1. If omitted, the model runs on this
    machine.
    """
    key_variable: Text | None = None
    """Environment variable that contains the endpoint's API key. Default: OPENAI_API_KEY, or no key for local
    endpoints."""
    system_prompt: str | None = None
    """System prompt to use for this model instead of `prompt.system_prompt`. An empty string means no system prompt."""
    price: Price | None = None
    """Token prices, used to compute costs."""


class EvalTask(parsing.TaskOptions):
    """The key of an entry is the task's name or a label."""

    task: Text | None = None
    """Name of the task, if the key is a label."""
    num_examples: Positive | None = None
    """Number of distinct questions. Default: the top-level `num_examples`."""
    sampling: TaskSampling = TaskSampling()
    """Settings that override `sampling` for this task."""


TASKS_BY_NAME = named("{name: b, num_examples: 20}", "give the second entry a label: {name: LABEL, task: NAME}")


def _without_categories(tasks: Any) -> Any:
    """Replace each entry that is named after a category and does not set `task` with entries for the category's tasks.
    A task's own entry takes precedence."""
    if not isinstance(tasks, Mapping):
        return tasks
    found: dict[str, Any] = {}
    for name, entry in tasks.items():
        of_category = [task for task, known in load_table().items() if known["category"] == name]
        if of_category and not (isinstance(entry, Mapping) and entry.get("task")):
            found = dict.fromkeys(of_category, entry) | found
        else:
            found[name] = entry
    return found


class EvalConfig(Section):
    """An evaluation."""

    renamed: ClassVar = {
        "model_path": "use models",
        "developer_prompt": "use prompt.system_prompt",
        "developer_role": "use prompt.placement",
        "eval_repeats": "use rollouts_per_example",
        "output_dir": "use output.dir",
        "size": "use num_examples",
        "max_new_tokens": "use sampling.max_tokens",
        "batch_size": "use requests.concurrency",
        "external": "run benchmarks with lm_eval itself, as in docs/tutorials/lm-eval.md",
        "published": "docs/reference/experiments.md lists published accuracies",
    }
    mistaken: ClassVar = {
        "training": "this is a training config: use rg-env train",
        "categories": "this is a config for Reasoning Gym's own evaluation: use configs/eval/paper_tables.yaml or "
        "configs/eval/paper_inter.yaml, which contain the paper's evaluations",
    }

    imports: list[Text] = Field(default_factory=list)
    """Modules or .py files that register custom tasks or rewards. File paths are relative to the config file that lists
    them."""
    models: Annotated[dict[str, EvalModel], Field(min_length=1)]
    """Models to evaluate."""
    tasks: dict[str, EvalTask] = Field(default_factory=dict)
    """Tasks to evaluate on. The name of a category selects all of its tasks. If neither `tasks` nor `data` is
    set, the evaluation tasks and data from a model's training run are used, with the run's sampling settings and,
    unless `num_examples` is set, its numbers of questions."""
    data: DataConfig | None = None
    """Your own questions and answers, in addition to tasks or instead of them. As in training, `eval_seed` determines
    which `num_examples` rows are selected. Rows that a checkpoint was trained on are skipped for that checkpoint."""
    num_examples: Positive = 100
    """Number of distinct questions for each task and for `data`. A task can set its own `num_examples`."""
    rollouts_per_example: Positive = 1
    """Number of sampled answers per question. With more than one answer per question, pass@k is reported."""
    greedy: bool = False
    """Whether to also generate one greedy answer per question."""
    eval_seed: parsing.Seed = 0
    """Seed that determines the questions, including the rows selected from `data`. Default: the seed from a model's
    training run if there is one, otherwise 0."""
    split_by: SplitBy = "problem"
    """Rule that assigns questions to the evaluation split, like `splits.by` in training. Default: the rule from a
    model's training run if there is one, otherwise "problem". Depending on the rule, problems or questions that a
    checkpoint was trained on are skipped for that checkpoint, and the number of skipped questions is reported."""
    seed: parsing.Seed = 0
    """Sampling seed for models served by the embedded engine. Default: the seed from a model's training run if there is
    one, otherwise 0."""
    extraction: Literal["strict", "lenient"] = "strict"
    """"lenient" reports, in addition, the accuracy if answers without well-formed `<answer>` tags are read too: a lone
    tag, a LaTeX box, "answer is" or the last line. All other figures stay strict."""
    grading: Literal["hardened", "partial", "upstream"] = "hardened"
    """Grading mode for answers to tasks, like `grading` in training. Default: the setting from a model's training run
    if there is one, otherwise "hardened"."""
    prompt: parsing.PromptConfig = parsing.PromptConfig()
    rewards: parsing.Rewards = Field(default_factory=parsing.default_rewards)
    """Rewards by name. The reported reward is the weighted sum of these rewards."""
    sampling: SamplingConfig = SamplingConfig()
    requests: RequestsConfig = RequestsConfig()
    serving: ServingConfig = ServingConfig()
    output: EvalOutputConfig = EvalOutputConfig()

    _tasks_named = field_validator("tasks", mode="before")(lambda value: _without_categories(TASKS_BY_NAME(value)))

    @field_validator("models", mode="before")
    @classmethod
    def _models_named(cls, value: Any) -> Any:
        value = [value] if isinstance(value, str) else value
        if isinstance(value, list):
            if not all(isinstance(each, str) for each in value):
                raise ValueError(
                    "a list of models can contain only names, folders and MODEL@URL; write other models as "
                    "{a: {model: ...}}"
                )
            entries = {name_of(each): split_address(each) for each in value}
            if len(entries) < len(value):
                raise ValueError(
                    "two models would have the same name: use models.a=... models.b=..., or {a: ..., b: ...}"
                )
            return entries
        if isinstance(value, Mapping):
            return {name: split_address(each) if isinstance(each, str) else each for name, each in value.items()}
        return value

    def mixture(self, name: str) -> Mixture:
        """Return the task called `name`, with its options."""
        return Mixture.parse(self.gym(name))

    def gym(self, name: str) -> dict[str, Any]:
        """Return the task called `name` in the form that `Mixture.parse` accepts. If the tiny policy is evaluated,
        tasks default to the problem sizes that it was designed for."""
        entry = self.tasks[name]
        options = entry.model_dump(exclude={"task", "num_examples", "sampling"})
        task = entry.task or name
        if not any(options.values()) and task in TINY_TASKS and TINY in {each.model for each in self.models.values()}:
            options["config"] = TINY_TASKS[task]
        return {"name": task, **options}

    @property
    def data_name(self) -> str | None:
        """Name of `data` in results, or None if there is no data."""
        return self.data.task_name if self.data else None

    @property
    def names(self) -> list[str]:
        """Names of the tasks and the data."""
        return [*self.tasks, *([self.data_name] if self.data_name else [])]

    def count(self, name: str) -> int:
        """Return the number of questions for `name`, which is a task or the data. The data may have fewer questions."""
        return (name in self.tasks and self.tasks[name].num_examples) or self.num_examples

    def sampling_of(self, name: str) -> SamplingConfig:
        """Return the sampling settings for `name`, which is a task or the data."""
        own = self.tasks[name].sampling.model_dump(exclude_none=True) if name in self.tasks else {}
        return self.sampling.model_copy(update=own)

    def plan(self) -> list[str]:
        """Return lines that describe the models, the tasks and the number of calls."""
        counts = {name: self.count(name) for name in self.names}
        times = self.rollouts_per_example + self.greedy
        tokens = sum(n * times * self.sampling_of(name).max_tokens for name, n in counts.items()) * len(self.models)
        draws = f"{self.rollouts_per_example} sampled{' and 1 greedy' if self.greedy else ''}"
        lines = {
            "models": ", ".join(self.models),
            "tasks": ", ".join(f"{name} ({counts[name]})" for name in self.tasks),
            "data": self.data and f"{self.data.path} (up to {counted(self.num_examples, 'question')})",
            "answers": counts and f"{draws} per question; grading mode: {self.grading}",
            "calls": counts
            and f"{len(self.models) * sum(counts.values()) * times:,}, with up to {tokens:,} answer tokens",
        }
        return [f"{label:<12}{text}" for label, text in lines.items() if text]
