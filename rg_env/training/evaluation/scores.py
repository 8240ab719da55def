"""What an evaluation found: `Scores` of some problems, and an `Evaluation` with those of all tasks."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from rg_env.core.statistics import mean_and_error, pass_at_k

Part = Literal["training", "held_out", "labelled"]
"""Where a problem's figures stand: those of the training tasks and of held-out tasks each make an overall figure; one
under a label counts for that label alone."""
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
    labelled: dict[str, Scores]
    """By label."""
    sampling: dict[str, Any]
    """The settings it was sampled with."""
    questions: list[dict[str, Any]]
    """What was asked, an entry an environment: part, label, tasks, number of problems, hashes."""
    rollouts: list[dict[str, Any]]
    """A record an answer. `task` is the label, where there is one; `problem` numbers the problems; the greedy answer
    stands in a problem's first record."""

    @classmethod
    def of(cls, step: int, problems: Sequence[Answers], **described: Any) -> "Evaluation":
        """The evaluation that these answers make."""

        def scores(part: Part) -> tuple[Scores, dict[str, Scores]]:
            found = [problem for problem in problems if problem[0]["part"] == part]
            tasks = dict.fromkeys(problem[0]["task"] for problem in found)
            each = {task: Scores.of([p for p in found if p[0]["task"] == task]) for task in tasks}
            return Scores.of(found), each

        (overall, tasks), (held_out, held_out_tasks) = scores("training"), scores("held_out")
        return cls(
            step=step,
            overall=overall,
            tasks=dict(sorted(tasks.items())),
            held_out=held_out if held_out_tasks else None,
            held_out_tasks=dict(sorted(held_out_tasks.items())),
            labelled=scores("labelled")[1],  # in the order that they were given
            rollouts=[answer for problem in problems for answer in problem],
            **described,
        )

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Evaluation":
        """What `as_json` gave."""
        names = [field.name for field in fields(Scores)]

        def each(part: dict[str, Any]) -> dict[str, Scores]:
            return {name: Scores(**scores) for name, scores in part.items()}

        def overall(part: dict[str, Any]) -> Scores:
            return Scores(**{name: part[name] for name in names})

        held_out = values["held_out"]
        return cls(
            overall=overall(values),
            tasks=each(values["tasks"]),
            held_out=overall(held_out) if held_out else None,
            held_out_tasks=each(held_out["tasks"]) if held_out else {},
            labelled=each(values["labelled"]),
            **{name: values[name] for name in ("step", "sampling", "questions", "rollouts")},
        )

    def summary(self) -> dict[str, Any]:
        """The scores as JSON, those of each task under `tasks`, those of held-out ones under `held_out`, those of each
        label under `labelled`."""

        def each(parts: dict[str, Scores]) -> dict[str, Any]:
            return {name: asdict(scores) for name, scores in parts.items()}

        def part(scores: Scores, tasks: dict[str, Scores]) -> dict[str, Any]:
            return {**asdict(scores), "tasks": each(tasks)}

        return {
            "step": self.step,
            "sampling": self.sampling,
            "questions": self.questions,
            **part(self.overall, self.tasks),
            "held_out": part(self.held_out, self.held_out_tasks) if self.held_out else None,
            "labelled": each(self.labelled),
        }

    def as_json(self) -> dict[str, Any]:
        return {**self.summary(), "rollouts": self.rollouts}

    def metrics(self) -> dict[str, float]:
        """Flat metrics under the field's names: `eval/accuracy`, `eval/<task>/accuracy`, `eval/held_out/accuracy`,
        `eval/<label>/accuracy`."""
        named = {"eval": self.overall}
        each = self.tasks | self.held_out_tasks | self.labelled
        named |= {f"eval/{name}": scores for name, scores in each.items()}
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
