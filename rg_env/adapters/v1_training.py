"""Adapter that lets `GRPOTrainer` train on single-turn Verifiers v1 tasksets. Tasks are scored as in Verifiers.

    env = TasksetEnvironment(train_taskset, eval_taskset.take(200))
    trainer = GRPOTrainer(model, env, args, tokenizer)

`Task.score` receives a trace with the prompt and the sampled completion, including its text, token ids,
log-probabilities, usage and finish reason. The trainer supports only single-turn tasks, so tasks that need several
turns, tools or a sandbox are rejected with an error that names them.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import verifiers.v1 as vf
from pydantic import PrivateAttr
from verifiers.v1.state import state_cls

from rg_env.adapters.v1 import chat_of
from rg_env.core.environment import Environment, PromptOptions, prompted_rows
from rg_env.core.event_loop import run_each
from rg_env.core.grading.scoring import Rollout
from rg_env.core.rewards import Scored, checked_value, describe
from rg_env.core.text import user_error
from rg_env.errors import InputError, MissingExtraError, RewardError, not_single_turn

if not hasattr(vf.Taskset, "bounded"):
    raise MissingExtraError("training on v1 tasksets needs verifiers 0.4 or later (run `pip install -U verifiers`)")

_TASK = "verifiers_task"
"""Key under which a row stores its task."""
_HOOKS = ("setup", "finalize", "stage_verifier")
"""Task methods that run in a sandbox, before or after the model's turn."""


class TasksetEnvironment(Environment):
    """Prompts, rewards and metrics from v1 tasksets.

    If a reward or metric raises an exception, or returns None or a non-finite number, scoring raises a `RewardError`. A
    reward or metric named `accuracy` marks correct rollouts, for curricula and filters.

    Args:
        train_taskset, eval_taskset: the tasks to train on and to evaluate on.

    Raises:
        InputError: a taskset is infinite, neither taskset has tasks, a task has no reward, or the trainer cannot run a
            task because it needs tools, several turns, a container or a sandbox, or because its prompt is not text.
    """

    def __init__(self, train_taskset: vf.Taskset | None, eval_taskset: vf.Taskset | None = None) -> None:
        self.prompt_options = PromptOptions(system_prompt=None)
        self.reward_weights: dict[str, float] = {}
        self.has_accuracy = False
        self.train_rows, self.eval_rows = (
            prompted_rows(self._rows(taskset), name, self.prompt_options)
            for name, taskset in (("train_taskset", train_taskset), ("eval_taskset", eval_taskset))
        )
        if not self.train_rows and not self.eval_rows:
            raise InputError("neither train_taskset nor eval_taskset has any tasks")

    def score(self, rollouts: Sequence[Rollout]) -> list[Scored]:
        found = run_each(_score, rollouts)
        names = dict.fromkeys(name for scored in found for name in scored.rewards)
        # Tasks may have different rewards. A missing reward adds nothing to the sum.
        return [each._replace(rewards={name: each.rewards.get(name, 0.0) for name in names}) for each in found]

    def _rows(self, taskset: vf.Taskset | None) -> list[dict[str, Any]]:
        if taskset is None:
            return []
        name = type(taskset).__name__
        if not isinstance(taskset, vf.Taskset):
            raise InputError(f"a taskset must be a verifiers.v1.Taskset, not {name}")
        if not taskset.bounded:
            raise InputError(f"{name} is infinite: limit it, for example {name}(...).take(1000)")
        if taskset.toolsets(taskset.config):
            raise not_single_turn(name, "has tools")
        checked: set[tuple[type, int]] = set()
        rows = []
        for task in taskset:
            if (kind := (type(task), id(task.config))) not in checked:
                checked.add(kind)
                self._check(task)
            rows.append(_row(task))
        return rows

    def _check(self, task: vf.Task) -> None:
        """Record the reward weights for this type of task. Raises `InputError` if the type has no reward, or if the
        trainer cannot run its tasks."""
        name, judges = type(task).__name__, task.plugged_judges()
        rewards, metrics = task.hooks("reward"), task.hooks("metric")
        if task.toolsets(task.config):
            raise not_single_turn(name, "has tools")
        if task.NEEDS_CONTAINER:
            raise not_single_turn(name, "needs a container")
        if own := [hook for hook in _HOOKS if getattr(type(task), hook, None) is not getattr(vf.Task, hook, None)]:
            raise not_single_turn(name, f"overrides {', '.join(own)}")
        if any(hasattr(getattr(type(task), each, None), "intercept") for each in dir(type(task))):
            raise not_single_turn(name, "intercepts requests or replies")
        of_judges = [(judge.reward_name, judge.score) for judge in judges]
        for signal, function in [*((each.__name__, each) for each in (*rewards, *metrics)), *of_judges]:
            runtime = inspect.signature(function).parameters.get("runtime")
            if runtime is not None and runtime.default is runtime.empty:
                raise not_single_turn(name, f"needs a runtime for {signal!r}")
        if not rewards and not judges:
            raise InputError(f"{name} has no reward: add a method decorated with @vf.reward, or a judge")
        self.reward_weights |= {each.__name__: float(getattr(each, "_vf_weight", 1.0)) for each in rewards}
        self.reward_weights |= {judge.reward_name: float(judge.config.weight) for judge in judges}
        self.has_accuracy |= "accuracy" in {*self.reward_weights, *(each.__name__ for each in metrics)}


def environment_of(env: Any) -> TasksetEnvironment:
    """Return the training environment for a taskset, or for an `Env` with one agent.

    Raises:
        InputError: `env` is neither a taskset nor an `Env`, has several agents, runs its agent in a custom way or with
            tools, or has a taskset that `TasksetEnvironment` rejects.
    """
    if isinstance(env, vf.Taskset):
        return TasksetEnvironment(env)
    name, base = type(env).__name__, vf.SingleAgentEnv
    if not isinstance(env, vf.Env):
        raise InputError(f"the Verifiers object {name} is neither a Taskset nor an Env")
    if not isinstance(env, base):
        raise not_single_turn(name, "is not a SingleAgentEnv and may have several agents or turns")
    if own := [hook for hook in ("run", "setup", "finalize") if getattr(type(env), hook) is not getattr(base, hook)]:
        raise not_single_turn(name, f"overrides {', '.join(own)}")
    harness = env.config.agent.harness  # if None, Verifiers uses its default harness, whose tools the trainer ignores
    if harness is not None and vf.load_harness(harness).EXECUTES_CODE:
        raise not_single_turn(name, f"has a harness with tools ({harness.id})")
    return TasksetEnvironment(env.taskset)


def _row(task: vf.Task) -> dict[str, Any]:
    data, answer = task.data, getattr(task.data, "answer", None)
    if data.skills:
        raise not_single_turn(f"{type(task).__name__} {data.idx}", "has skills")
    try:
        prompt = chat_of(data.system_prompt, data.prompt)
    except TypeError as error:
        raise not_single_turn(f"{type(task).__name__} {data.idx}", f"cannot be prompted: {error}") from error
    return {"prompt": prompt, "answer": answer if isinstance(answer, str | int | float) else None, _TASK: task}


async def _score(rollout: Rollout) -> Scored:
    task, name = rollout.row[_TASK], type(rollout.row[_TASK]).__name__
    trace = _trace(task, rollout)
    where = trace._where = describe(task.data.name or name, rollout.extraction.answer, rollout.text)
    try:
        await task.score(trace)
    except vf.TaskError as error:
        if isinstance(cause := error.__cause__, RewardError):
            raise cause from cause.__cause__
        raise RewardError(f"a reward or metric raised {user_error(cause or error)}; {where}") from error
    if not trace.rewards:
        raise RewardError(f"{name} returned no reward; {where}")
    rewards = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    if "accuracy" in rewards:
        metrics["accuracy"] = rewards.pop("accuracy")
    return Scored(trace.reward, rewards, metrics)


class _Trace(vf.Trace):
    """Trace that raises `RewardError` for a value that is not a finite number."""

    _where: str = PrivateAttr("")

    def record_metric(self, name: str, value: float) -> None:
        super().record_metric(name, checked_value(name, value, self._where))

    def record_reward(self, name: str, value: float, weight: float = 1.0) -> None:
        super().record_reward(name, checked_value(name, value, self._where), weight)


def _trace(task: vf.Task, rollout: Rollout) -> _Trace:
    """Build the trace that Verifiers would have recorded for the rollout."""
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
    messages = [kinds[message["role"]](content=message["content"]) for message in rollout.prompt]
    nodes = [vf.MessageNode(parent=index - 1 if index else None, message=each) for index, each in enumerate(messages)]
    sampled = vf.MessageNode(
        parent=len(nodes) - 1,
        message=vf.AssistantMessage(content=rollout.text),
        sampled=True,
        token_ids=list(rollout.token_ids),
        mask=[True] * len(rollout.token_ids),
        logprobs=list(rollout.logprobs),
    )
    call = vf.ModelCall(
        node=len(nodes),
        finish_reason=None if rollout.truncated is None else "length" if rollout.truncated else "stop",
        # The number of prompt tokens is unknown here.
        usage=vf.Usage(prompt_tokens=0, completion_tokens=rollout.completion_tokens or 0),
    )
    trace = _Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        state=state_cls(type(task))(),
        nodes=[*nodes, sampled],
        calls=[call],
    )
    trace.stop("agent_completed")
    return trace
