"""What an evaluation found: `Scores` of some problems, and an `Evaluation` with those of all tasks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rg_env.core.statistics import mean_and_error, pass_at_k

Answers = Sequence[dict[str, Any]]
"""The records of all sampled answers to one problem; the first also holds the greedy one."""


@dataclass(frozen=True)
class Scores:
    """Means over all answers to `n` problems, each with its standard error, clustered by problem (`core.statistics`).

    None where there is nothing to average: accuracies, if the rubric has no `accuracy` metric; greedy figures, if the
    plan asks for none; tokens and `truncated`, if the server reports no usage; all, if `n` is 0.
    """

    n: int
    accuracy: float | None
    accuracy_se: float | None
    greedy_accuracy: float | None
    greedy_accuracy_se: float | None
    reward: float | None
    reward_se: float | None
    greedy_reward: float | None
    greedy_reward_se: float | None
    mean_completion_tokens: float | None
    mean_completion_tokens_se: float | None
    truncated: float | None
    """Share of the sampled answers that `max_tokens` cut off."""
    truncated_se: float | None
    pass_at_k: dict[str, float]
    """pass@1, pass@2, pass@4, ... up to the number of answers to a problem; empty if that is 1."""
    pass_at_k_se: dict[str, float]
    status: dict[str, float]
    """Share of each status among the sampled answers (`core.scoring.Status`); empty in other environments."""

    @classmethod
    def of(cls, problems: Sequence[Answers]) -> "Scores":
        """The scores of these problems."""
        figures: dict[str, Any] = {}
        for name, key in (
            ("accuracy", "correct"),
            ("greedy_accuracy", "greedy_correct"),
            ("reward", "reward"),
            ("greedy_reward", "greedy_reward"),
            ("mean_completion_tokens", "completion_tokens"),
            ("truncated", "truncated"),
        ):
            figures[name], figures[f"{name}_se"] = _mean(problems, key)
        passes = _passes(problems)
        answers = [answer for problem in problems for answer in problem]
        statuses = Counter(answer["status"] for answer in answers if "status" in answer)
        return cls(
            n=len(problems),
            pass_at_k={name: mean for name, (mean, _) in passes.items()},
            pass_at_k_se={name: error for name, (_, error) in passes.items()},
            status={name: count / len(answers) for name, count in sorted(statuses.items())},
            **figures,
        )

    def flat(self) -> dict[str, Any]:
        """All figures but errors and `n`, pass@k as `pass@2`, the statuses as `status/<name>`."""
        figures = {name: value for name, value in asdict(self).items() if name != "n" and not name.endswith("_se")}
        status = {f"status/{name}": share for name, share in figures.pop("status").items()}
        return figures.pop("pass_at_k") | figures | status


def _mean(problems: Sequence[Answers], key: str) -> tuple[float, float] | tuple[None, None]:
    values = [[float(answer[key]) for answer in problem if answer.get(key) is not None] for problem in problems]
    return mean_and_error(values) if any(values) else (None, None)


def _passes(problems: Sequence[Answers]) -> dict[str, tuple[float, float]]:
    most = min(map(len, problems), default=0)
    if most < 2 or any(answer["correct"] is None for problem in problems for answer in problem):
        return {}
    right = [(len(problem), sum(answer["correct"] for answer in problem)) for problem in problems]
    powers = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return {f"pass@{k}": mean_and_error([[pass_at_k(n, c, k)] for n, c in right]) for k in powers}


@dataclass(frozen=True)
class Evaluation:
    """One pass over the frozen problems, after `step` optimizer steps."""

    step: int
    overall: Scores
    """Over the training tasks' problems; `n` is 0 if none are asked."""
    tasks: dict[str, Scores]
    """Each of the training tasks."""
    held_out: Scores | None
    """Over the held-out tasks' problems; None if there are none."""
    held_out_tasks: dict[str, Scores]
    sampling: dict[str, Any]
    """The settings it was sampled with."""
    questions: list[dict[str, Any]]
    """What was asked, an entry an environment: tasks, whether held out, number of problems, hashes."""
    rollouts: list[dict[str, Any]]
    """A record an answer. `problem` numbers the problems; the greedy answer stands in a problem's first record."""

    @classmethod
    def of(cls, step: int, problems: Sequence[Answers], **described: Any) -> "Evaluation":
        """The evaluation that these answers make."""

        def scores(held_out: bool) -> tuple[Scores, dict[str, Scores]]:
            part = [problem for problem in problems if problem[0]["held_out"] == held_out]
            tasks = sorted({problem[0]["task"] for problem in part})
            each = {task: Scores.of([p for p in part if p[0]["task"] == task]) for task in tasks}
            return Scores.of(part), each

        (overall, tasks), (held_out, held_out_tasks) = scores(False), scores(True)
        rollouts = [answer for problem in problems for answer in problem]
        return cls(
            step, overall, tasks, held_out if held_out_tasks else None, held_out_tasks, rollouts=rollouts, **described
        )

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Evaluation":
        """What `as_json` gave."""
        names = [field.name for field in fields(Scores)]

        def read(part: dict[str, Any]) -> tuple[Scores, dict[str, Scores]]:
            each = {task: Scores(**scores) for task, scores in part["tasks"].items()}
            return Scores(**{name: part[name] for name in names}), each

        held_out = read(values["held_out"]) if values["held_out"] else (None, {})
        described = {name: values[name] for name in ("sampling", "questions", "rollouts")}
        return cls(values["step"], *read(values), *held_out, **described)

    def summary(self) -> dict[str, Any]:
        """The scores as JSON, those of each task under `tasks`, those of held-out ones under `held_out`."""

        def part(scores: Scores, tasks: dict[str, Scores]) -> dict[str, Any]:
            return {**asdict(scores), "tasks": {task: asdict(each) for task, each in tasks.items()}}

        return {
            "step": self.step,
            "sampling": self.sampling,
            "questions": self.questions,
            **part(self.overall, self.tasks),
            "held_out": part(self.held_out, self.held_out_tasks) if self.held_out else None,
        }

    def as_json(self) -> dict[str, Any]:
        return {**self.summary(), "rollouts": self.rollouts}

    def metrics(self) -> dict[str, float]:
        """Flat metrics under the field's names: `eval/accuracy`, `eval/<task>/accuracy`, `eval/held_out/accuracy`."""
        named = {"eval": self.overall}
        named |= {f"eval/{task}": scores for task, scores in (self.tasks | self.held_out_tasks).items()}
        named |= {"eval/held_out": self.held_out} if self.held_out else {}
        return {
            f"{prefix}/{name}": value
            for prefix, scores in named.items()
            for name, value in scores.flat().items()
            if value is not None
        }

    def samples(self) -> list[dict[str, Any]]:
        """The first answer to each problem."""
        first: dict[int, dict[str, Any]] = {}
        for rollout in self.rollouts:
            first.setdefault(rollout["problem"], rollout)
        return list(first.values())
