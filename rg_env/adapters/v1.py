"""The environment for Verifiers' v1 API (0.2.1 to 0.4, and prime-rl): a taskset, its tasks and a harness.

    vf-eval rg-env -m MODEL                                     # 0.4; the command is called `eval` in 0.2 and 0.3
    vf-eval rg-env -m MODEL --env.taskset.gym chain_sum --env.taskset.level 1
    vf-validate rg-env --runtime.type subprocess -n 20          # checks that the gold answers are graded as correct
    vf-replay outputs/RUN                                       # rescores a run's saved results

    env = rg_env.load_environment("leg_counting", split="eval")      # the same from Python (0.4)
    context = vf.ModelContext(model="m", client=vf.EvalClientConfig(base_url=URL, api_key_var=KEY_VARIABLE))
    async with env.serving():
        episodes = [await env.run_episode(task, context) for task in env.taskset]

Rows, prompts, graders and rewards are the same as in the v0 environment. The same options yield the same questions and
scores with every release of Verifiers. Rows are built, or read from the cache, when the taskset is iterated over.
Differences between releases of the v1 API are handled by duck typing, not by version checks.

For each task, the harness sends one request from this process, without a sandbox, program or tools. Every request
passes through Verifiers' interception endpoint, so traces are complete. Other tasksets can use the harness by its id
"rg-env" if their prompts are text.
"""

import functools
import inspect
import json
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import httpx
import openai
import verifiers.v1 as vf
from pydantic import Field, PrivateAttr, field_validator, model_validator

from rg_env.core.data.dataset import SplitRequest, build_rows
from rg_env.core.data.splits import OnFew, SplitBy, question_hash
from rg_env.core.environment import PromptOptions, ReasoningGym
from rg_env.core.grading.extraction import extract
from rg_env.core.grading.scoring import Grading, Rollout, score_extraction_async
from rg_env.core.prompts import SYSTEM_PROMPT, Placement, build_messages
from rg_env.core.rewards import OFFERED, Rubric, check_offered, offered, resolve_rewards
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.text import plain
from rg_env.core.user_code import import_user_code
from rg_env.errors import InputError, unknown_name

SPLITS = ("train", "eval")
REQUEST_TIMEOUT_S = 3600.0
"""Timeout for each attempt to get an answer. The `openai` client retries twice after a temporary failure."""
_PARAMETERS = inspect.signature(ReasoningGym).parameters
_OF_V0 = {
    "dataset": "env.environment.train_rows",
    "get_dataset": "env.environment.train_rows",
    "eval_dataset": "env.environment.eval_rows",
    "get_eval_dataset": "env.environment.eval_rows",
    "rubric": "env.environment.rubric",
    "parser": "rg_env.extract",
    "system_prompt": "env.environment.system_prompt",
    "generate": "vf-eval, or env.run_episode(task, context) for each task of env.taskset",
    "evaluate": "vf-eval, or env.run_episode(task, context) for each task of env.taskset",
}
"""Attributes of environments for the v0 API, with what to use instead."""
_ROWS = ("train_rows", "eval_rows")
_SPLIT = inspect.Parameter("split", inspect.Parameter.KEYWORD_ONLY, default="eval")


class ReasoningGymTaskData(vf.TaskData):
    """One question, in the format sent between processes and stored in traces."""

    question: str = ""
    """The question alone, without instructions for the answer format."""
    answer: str = ""
    """The gold answer, or "" if the library does not store one."""
    info: dict[str, str] = Field(default_factory=dict)
    """Data for scoring, such as the task's name, the grading mode and (both as JSON) the task's options and the
    library's entry."""


class ReasoningGymTaskConfig(vf.TaskConfig):
    """Task config without options. Rewards are set in the taskset's config, which passes them to this config."""

    _rubric: str | Rubric = PrivateAttr('{"gym": "leg_counting"}')
    """Rubric as JSON (see `_parsed`), because a config may be pickled for another process, which imports the user's
    code itself. In a `ReasoningGymEnv`, which stays in one process, this is a `Rubric` object."""


class ReasoningGymTask(vf.Task[ReasoningGymTaskData, vf.State, ReasoningGymTaskConfig]):
    """A question with its rewards and metrics."""

    @property
    def key(self) -> str:
        """A unique key for the question: the task's name and a hash of the question's text."""
        return f"{self.data.info.get('rg_task')}:{question_hash(self.data.question)}"

    @vf.reward
    async def rubric(self, trace: vf.Trace) -> dict[str, float]:
        """Record all rewards, with their weights, and the environment's metrics.

        Raises `RewardError`, and records nothing, if a reward fails. Verifiers stores the exception as the trace's
        error.
        """
        rubric = _rubric_of(self.config._rubric)
        rollout = await self._rollout(trace)
        available = offered(rollout)
        values = [(each.name, await each.avalue(rollout, available), each.weight) for each in rubric.rewards]
        for name, value, weight in values:
            trace.record_reward(name, value, weight)
        for metric in rubric.metrics:
            trace.record_metric(metric.name, metric.value(rollout))
        return {}

    async def validate(self, runtime: vf.Runtime) -> bool | None:
        """Return whether the gold answer is graded as correct, or None if the library does not store one."""
        if not self.data.answer:
            return None
        _rubric_of(self.config._rubric)  # this also imports the user's own tasks
        gold = extract(f"<answer>{self.data.answer}</answer>")
        return (await score_extraction_async(gold, self.data.info)).status == "correct"

    async def _rollout(self, trace: vf.Trace) -> Rollout:
        replies, data = trace.assistant_messages, self.data
        text = (replies[-1].content if replies else None) or ""
        calls = [call for call in trace.calls if call.node is not None]
        usage = calls[-1].usage if calls else None
        tokens = usage.completion_tokens if usage else None
        truncated = calls[-1].finish_reason == "length" if calls else None
        prompt = chat_of(data.system_prompt, data.prompt)
        rollout = Rollout(prompt, text, data.answer, data.info, tokens, truncated)
        return rollout.with_score(await score_extraction_async(rollout.extraction, data.info))


class ReasoningGymTasksetConfig(vf.TasksetConfig):
    """Options for the taskset: most of the parameters of `ReasoningGym`, plus `split`, `level` and `imports`. The
    parameter `system_prompt` is called `instruction`."""

    task: ReasoningGymTaskConfig = ReasoningGymTaskConfig()
    gym: str | dict[str, Any] | list[Any] = "leg_counting"
    """A task, or a mixture: a list of task names, or of mappings with the keys name, weight, config, level and levels.
    On the command line, pass a mixture as JSON."""
    split: Literal["train", "eval"] = "eval"
    """Split to draw questions from. Use `train` for training. By default, a problem is never in both splits, regardless
    of the seeds (see `split_by`)."""
    num_train_examples: int = Field(2000, ge=0)
    num_eval_examples: int = Field(200, ge=0)
    seed: int = 0
    """Random seed for the training questions."""
    eval_seed: int = 0
    """Random seed for the evaluation questions."""
    split_by: SplitBy = "problem"
    """Whether a row's split depends on its `problem` or on the text of its `question`."""
    on_few: OnFew = "repeat"
    """What to do if a task has fewer distinct questions than requested: `repeat` training questions and reduce the
    evaluation split, `cap` both splits, or raise an `error`."""
    level: int | None = None
    """Difficulty level for all tasks in `gym` that do not set a level."""
    rewards: str | dict[str, Any] | list[Any] | None = None
    """A reward name, or several names with weights. On the command line, pass several names as JSON. The default is
    correctness with weight 1 and format with weight 0.1.
    """
    grading: str = "hardened"
    """Grading mode: `hardened` (right or wrong), `partial` (partial credit) or `upstream` (the library's own
    formulas)."""
    instruction: str | None = SYSTEM_PROMPT
    """Text of the system prompt. (Verifiers has its own option, `system_prompt`, for a file that overrides this text.)
    """
    prompt_placement: Placement = "system"
    """Position of `instruction`: in a system message, or in the user turn before or after the question."""
    preamble: str | None = None
    """Additional text in the system message."""
    few_shot: int | list[dict[str, str]] = Field(default_factory=list)
    """Chat messages before the question, or a number of examples to draw from the task's training questions."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables of the model's chat template, such as `{"enable_thinking": false}`."""
    opens_thinking: bool = False
    """Whether the model's chat template ends the prompt with `<think>`, so that a completion without `</think>` has no
    answer. Not needed if the server has a reasoning parser."""
    stop: list[str] = Field(default_factory=list)
    """Texts that end a completion. The text is part of the completion, if the server supports that (vLLM)."""
    imports: list[str] = Field(default_factory=list)
    """Modules and .py files with your own tasks and rewards."""

    @field_validator("gym", "rewards", mode="before")
    @classmethod
    def _from_command_line(cls, value: Any) -> Any:
        if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            try:
                return json.loads(value)
            except (ValueError, RecursionError) as error:
                raise InputError(f"not JSON: {error}") from error
        return value

    @model_validator(mode="after")
    def _checked(self) -> "ReasoningGymTasksetConfig":
        """Check everything that can be checked without drawing a question."""
        self.imports = [os.path.abspath(name) if name.endswith(".py") else name for name in self.imports]
        if not self._count:
            raise InputError(f"num_{self.split}_examples is 0, so the split {self.split!r} would be empty: increase it")
        if (self.chat_template_kwargs or self.stop) and not hasattr(vf, "SingleAgentEnv"):
            raise InputError(
                "chat_template_kwargs and stop need Verifiers 0.3 or later: run `pip install -U verifiers`"
            )
        options = self._prompt_options
        try:
            rubric = json.dumps(
                {
                    "gym": _at_level(self.gym, self.level),
                    "grading": options.grading,
                    "rewards": self.rewards,
                    "imports": self.imports,
                }
            )
        except TypeError as error:
            raise InputError(
                f"gym and rewards must be plain values here ({error}): register your own function with "
                "@rg_env.reward, list its file under imports, and use its name"
            ) from error
        SplitRequest(_parsed(rubric)[0], self.split, self._count, self._seed, self.split_by, self.on_few)
        self.task = self.task.model_copy()
        self.task._rubric = rubric
        return self

    @property
    def _prompt_options(self) -> PromptOptions:
        grading = cast("Grading", self.grading)  # PromptOptions checks this value
        return PromptOptions(
            self.instruction,
            self.prompt_placement,
            self.preamble,
            self.few_shot,
            grading=grading,
            chat_template_kwargs=self.chat_template_kwargs,
            opens_thinking=self.opens_thinking,
        )

    @property
    def _count(self) -> int:
        return self.num_train_examples if self.split == "train" else self.num_eval_examples

    @property
    def _seed(self) -> int:
        return self.seed if self.split == "train" else self.eval_seed


class ReasoningGymTaskset(vf.Taskset[ReasoningGymTask, ReasoningGymTasksetConfig]):
    """The questions in one split."""

    def load(self) -> Iterator[ReasoningGymTask]:
        """Yield the tasks in order. Equal configs yield equal tasks. Raises the same errors as `build_rows`."""
        config = self.config
        mixture, _ = _parsed(str(config.task._rubric))
        how: Any = {"split_by": config.split_by, "on_few": config.on_few}
        rows = build_rows(mixture, config.split, config._count, config._seed, **how)
        options = config._prompt_options.with_examples(mixture, config.split_by)
        yield from tasks_of(options.to_examples(rows), config.task)


def _with_sampling(agent: Any, taskset: ReasoningGymTasksetConfig) -> Any:
    """Return `agent` with the taskset's `chat_template_kwargs` and `stop` in its sampling settings, which Verifiers and
    prime-rl apply to each request. Values that the agent already has take precedence."""
    sampling: dict[str, Any] = {}
    if taskset.chat_template_kwargs:
        sampling["chat_template_kwargs"] = dict(taskset.chat_template_kwargs)
    if taskset.stop:
        sampling |= {"stop": taskset.stop, "include_stop_str_in_output": True}
    own = agent.sampling.model_dump(exclude_unset=True) if agent.sampling else {}
    return agent.model_copy(
        update={"sampling": vf.SamplingConfig.model_validate({**sampling, **own})} if sampling else {}
    )


def tasks_of(rows: Iterable[Mapping[str, Any]], config: ReasoningGymTaskConfig) -> Iterator[ReasoningGymTask]:
    """Yield a task for each row, in order. Each row must have a prompt."""
    for index, row in enumerate(rows):
        messages = list(row["prompt"])
        system = messages.pop(0)["content"] if messages[0]["role"] == "system" else None
        data = ReasoningGymTaskData(
            idx=index,
            name=f"{row['info']['rg_task']}-{index}",
            prompt=messages[0]["content"] if len(messages) == 1 else messages,
            system_prompt=system,
            question=row["question"],
            answer=row["answer"],
            info=row["info"],
        )
        yield ReasoningGymTask(data, config)


def _rubric_of(rubric: str | Rubric) -> Rubric:
    return rubric if isinstance(rubric, Rubric) else _parsed(rubric)[1]


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[Mixture, Rubric]:
    """Return the mixture and the rubric that `text` (JSON) describes. Imports the user's code. Raises `InputError`."""
    spec = json.loads(text)
    import_user_code(spec.get("imports", []))
    mixture, rewards = Mixture.parse(spec["gym"]), resolve_rewards(spec.get("rewards"))
    check_offered(rewards, OFFERED, "the v1 API")
    grading = spec.get("grading", "hardened")
    return mixture, Rubric.of_tasks(rewards, mixture, grading)


def _at_level(gym: Any, level: int | None) -> Any:
    """Return `gym` with `level` added to all tasks that do not set a level."""
    if level is None:
        return gym
    tasks = gym if isinstance(gym, list) else [gym]
    named = [{"name": task} if isinstance(task, str) else task for task in tasks]
    return [{"level": level, **task} if isinstance(task, Mapping) else task for task in named]


class SingleTurnHarness(vf.Harness[vf.HarnessConfig]):
    """A harness that requests one chat completion for a task's prompt. The task's system prompt becomes a system
    message."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData | None = None,
    ) -> vf.ProgramResult:
        """Send the request. A failed request is reported like a failed program, and Verifiers records the cause."""
        # Verifiers 0.2 does not pass `data`.
        system, prompt = self.resolve_prompt(trace.task.data if data is None else data)
        messages: Any = chat_of(system, prompt)
        transport = httpx.AsyncClient(verify=_certificates())
        try:
            async with openai.AsyncOpenAI(
                base_url=endpoint, api_key=secret, timeout=REQUEST_TIMEOUT_S, http_client=transport
            ) as client:
                await client.chat.completions.create(model=ctx.model, messages=messages)
        except openai.OpenAIError as error:
            return vf.ProgramResult(exit_code=1, stdout="", stderr=str(error))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def chat_of(system: str | None, prompt: object) -> list[dict[str, str]]:
    """Convert a task's system prompt and prompt (text or text messages) to chat messages.

    Raises:
        TypeError: the list of messages is empty, or a message contains an image or tool call, or is the result of a
            tool call.
    """
    if isinstance(prompt, str):
        return [dict(message) for message in build_messages(prompt, system)]
    messages: Any = prompt if isinstance(prompt, list) else []
    for message in messages:
        if message.role == "tool" or not isinstance(message.content, str) or getattr(message, "tool_calls", None):
            raise TypeError("the prompt is not plain text")
    if not messages:
        raise TypeError("the prompt is empty")
    chat = [{"role": message.role, "content": message.content} for message in messages]
    return ([] if system is None else [{"role": "system", "content": system}]) + chat


@functools.cache
def _certificates() -> ssl.SSLContext:
    """Return a TLS context, cached because loading its certificates takes longer than a local request."""
    return httpx.create_ssl_context()


if hasattr(vf, "SingleAgentEnv"):  # Verifiers 0.2 lacks this class; in that release, the harness has its own runtime

    class SingleTurnEnvConfig(vf.SingleAgentEnvConfig):
        """Config for an environment whose only agent runs on this machine."""

        agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
        """Agent config with a subprocess as the runtime. Verifiers' default runtime rents a sandbox, which requires a
        login and is not needed because the agent does not execute code."""

        @model_validator(mode="after")
        def _sampled_as_configured(self) -> "SingleTurnEnvConfig":
            if isinstance(self.taskset, ReasoningGymTasksetConfig):
                self.agent = _with_sampling(self.agent, self.taskset)
            return self

    class SingleTurnEnv(vf.SingleAgentEnv, vf.Env[SingleTurnEnvConfig]):
        """Environment that Verifiers uses to evaluate the taskset when the taskset is loaded by id."""

    class ReasoningGymEnv(SingleTurnEnv):
        """A single-turn environment for Reasoning Gym tasks. By default, training and evaluation never share a problem.

        Unlike the taskset that Verifiers loads by id, this environment stays in one process, so rewards may be
        functions. It takes the arguments of `ReasoningGym` and `split`.

        Args:
            split: the split that `taskset` contains, "eval" or "train".

        Attributes:
            environment: the underlying `ReasoningGym` with both splits, used by `GRPOTrainer`.
            manifest: the manifest of both splits' rows (`core.data.manifest`), as in the v0 environment.
            taskset: the rows of `split` as Verifiers tasks.

        Raises:
            InputError: an argument is invalid.
            GenerationError: a draw takes too long, or a generation process cannot be started or dies.
        """

        __signature__ = inspect.Signature([*_PARAMETERS.values(), _SPLIT])

        def __init__(self, *args: Any, split: Literal["train", "eval"] = "eval", **options: Any) -> None:
            if split not in SPLITS:
                raise unknown_name("split", split, SPLITS)
            self.environment = env = ReasoningGym(*args, **options)
            config = SingleTurnEnvConfig(taskset={"id": "rg-env"})
            task = config.taskset.task.model_copy()
            task._rubric = env.rubric
            given = plain(inspect.signature(ReasoningGym).bind(*args, **options).arguments)
            known = {name: value for name, value in given.items() if name in ReasoningGymTasksetConfig.model_fields}
            own = {"task": task, "split": split, "grading": env.grading, "instruction": env.system_prompt}
            # Copy without validation, which would reject functions and mixtures.
            taskset = config.taskset.model_copy(update={**known, **own})
            agent = _with_sampling(config.agent, taskset)
            super().__init__(config.model_copy(update={"taskset": taskset, "agent": agent}))
            self.manifest = env.manifest
            self.taskset = _RowsTaskset(taskset, env.train_rows if split == "train" else env.eval_rows)

        def __repr__(self) -> str:
            return f"ReasoningGymEnv({self.environment!r}, {self.config.taskset.split!r})"

        def __getattr__(self, name: str) -> Any:
            if use := _OF_V0.get(name):
                raise AttributeError(f"{name} belongs to Verifiers' v0 API, up to 0.3.1: use {use}")
            use = f": use env.environment.{name}" if hasattr(ReasoningGym, name) or name in _ROWS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{use}")

    def load_environment(*args: Any, split: Literal["train", "eval"] = "eval", **options: Any) -> ReasoningGymEnv:
        """Build the environment.

        This function takes the arguments of `ReasoningGym` and `split`. With Verifiers 0.4 or later, it returns a
        Verifiers environment for the v1 API. With releases from 0.1.6 to 0.3.1, it returns one for the v0 API, and
        also takes `rubric`, `parser` and the arguments of `vf.SingleTurnEnv` instead of `split`. Without Verifiers, it
        returns a plain `ReasoningGym`.

        Args:
            split: the split that `taskset` contains, "eval" or "train".

        Raises:
            InputError: an argument is invalid.
            GenerationError: a draw takes too long, or a generation process cannot be started or dies.
        """
        return ReasoningGymEnv(*args, split=split, **options)

    load_environment.__signature__ = ReasoningGymEnv.__signature__  # type: ignore[attr-defined]


class _RowsTaskset(ReasoningGymTaskset):
    """A taskset of rows that have already been drawn."""

    def __init__(self, config: ReasoningGymTasksetConfig, rows: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(config)
        self._rows = rows

    def load(self) -> Iterator[ReasoningGymTask]:
        split = self.config.split
        if not self._rows:
            other = SPLITS[split == SPLITS[0]]
            raise InputError(f"num_{split}_examples is 0, so there are no tasks: increase it, or use split={other!r}")
        return tasks_of(self._rows, self.config.task)
