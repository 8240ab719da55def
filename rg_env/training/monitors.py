"""Monitors over a run's logged metrics: each rule reports what is wrong, the likely cause and the key to change.

    monitors = Monitors(MonitorsConfig())
    for record in records:                 # dicts, as in metrics.jsonl
        for alarm in monitors.see(record):
            print(alarm.line)

    GRPOTrainer(..., callbacks=[MonitorCallback(MonitorsConfig(stop_on=["reward_hacking"]))])

`train` adds a `MonitorCallback` to every run. A resumed run's monitors continue from the logs in its state: what had
fired before is not reported again. A rule whose metrics are not logged never fires. Averages are over a window; noise
is what differs from step to step.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

from transformers import TrainerCallback

from rg_env.inference.models import processes
from rg_env.training.config.schema import MonitorsConfig
from rg_env.training.distributed import on_main

_HUGE = 1e30  # what is beyond counts as this: its square is a number still


@dataclass(frozen=True)
class Mean:
    """Of some values in a row, with its standard error, from how they differ."""

    value: float
    error: float

    @classmethod
    def of(cls, values: list[float]) -> "Mean":
        mean = math.fsum(values) / len(values)
        variance = math.fsum((value - mean) * (value - mean) for value in values) / max(1, len(values) - 1)
        return cls(mean, math.sqrt(variance / len(values)))

    def rise_to(self, later: "Mean") -> float:
        """To `later`, in standard errors of the difference; below 0: a fall."""
        rise, error = later.value - self.value, math.hypot(self.error, later.error)
        if error > 0:
            return rise / error
        return 0.0 if rise == 0 else math.copysign(math.inf, rise)


class History:
    """The last two windows of each metric, and the first one; a window is `window` records that have the metric."""

    def __init__(self, window: int):
        self.window = window
        self.step = 0
        """Of the last record."""
        self._last: dict[str, deque[tuple[int, float]]] = {}
        self._first: dict[str, list[float]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Take up the metrics of a step."""
        step = _number(record.get("step"))
        self.step = self.step + 1 if step is None else int(step)
        for name, value in record.items():
            if name != "step" and (number := _number(value)) is not None:
                self._last.setdefault(name, deque(maxlen=2 * self.window)).append((self.step, number))
                first = self._first.setdefault(name, [])
                if len(first) < self.window:
                    first.append(number)

    def names(self) -> list[str]:
        return list(self._last)

    def latest(self, name: str) -> float | None:
        """Of the last record; None if it has none."""
        series = self._last.get(name)
        return series[-1][1] if series and series[-1][0] == self.step else None

    def recent(self, name: str) -> list[float]:
        """The last window; empty until there is a whole one."""
        return self._part(name, self.window)

    def earlier(self, name: str) -> list[float]:
        """The window before that; empty until there is a whole one."""
        return self._part(name, 2 * self.window)[: self.window]

    def first(self, name: str) -> list[float]:
        """The first window; empty until there is a whole one behind it."""
        return self._first[name] if self.earlier(name) else []

    def start(self, name: str) -> float:
        """Mean over the first window; 0 until there is a whole one behind it."""
        values = self.first(name)
        return sum(values) / len(values) if values else 0.0

    def mean(self, name: str) -> float | None:
        """Over the last window."""
        values = self.recent(name)
        return math.fsum(values) / len(values) if values else None

    def span(self, name: str, windows: int = 1) -> int:
        """How many steps the last windows are."""
        series = self._last.get(name) or [(self.step, 0.0)]
        steps = [step for step, _ in islice(series, max(0, len(series) - windows * self.window), None)]
        between = (steps[-1] - steps[0]) / max(1, len(steps) - 1)
        return max(len(steps), round(steps[-1] - steps[0] + between))

    def _part(self, name: str, length: int) -> list[float]:
        series = self._last.get(name, ())
        return [value for _, value in islice(series, len(series) - length, None)] if len(series) >= length else []


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
        return None
    return float(max(-_HUGE, min(_HUGE, value)))


TOO_EASY, TOO_HARD = 0.8, 0.2
"""Accuracies beyond which most groups of eight are all right, or all wrong."""
KL_FLOOR, RATIO_FLOOR = 0.1, 10.0
"""Below these, in nats a token and as a ratio, nothing is a spike: both are near zero and one when training begins."""
_SURE, _NOISE = 3.0, 1.0
"""Standard errors from which a mean has changed for certain, and within which it has not."""
_LENGTH = "completions/mean_length"
_LENGTH_REWARDS = ("length", "brevity", "cosine", "overlong_penalty")

Window = Callable[[str], list[float]]
"""A metric's values in some window; empty if it is incomplete."""


def zero_variance(history: History, threshold: float) -> str | None:
    """Groups of equal rewards teach nothing."""
    share = history.mean("frac_reward_zero_std")
    if share is None or share < threshold:
        return None
    accuracy = history.mean("accuracy")
    symptom = f"{_percent(share)} of groups had equal rewards {_over(history, 'frac_reward_zero_std')}"
    if accuracy is None:
        return f"{symptom}: the rewards do not tell answers apart: change rewards, or raise training.temperature"
    symptom, names = f"{symptom}: ", " ".join(history.names())
    at = f"(accuracy {accuracy:.2f})"
    curriculum = "curriculum/" in names
    # What is on already is not suggested, and a curriculum's prompts are not filtered.
    other = "" if curriculum or "filter_groups/" in names else ", or set training.filter_groups=true"
    if accuracy >= TOO_EASY:
        change = "lower curriculum.success_threshold" if curriculum else "raise tasks.NAME.level"
        return f"{symptom}the tasks are too easy for this model {at}: {change}{other}"
    if accuracy <= TOO_HARD:
        change = "raise curriculum.failure_threshold" if curriculum else "lower tasks.NAME.level"
        return f"{symptom}the tasks are too hard for this model {at}: {change}{other}"
    return f"{symptom}each question is answered all right or all wrong {at}: raise training.temperature{other}"


def answer_rate(history: History, threshold: float) -> str | None:
    """Completions without an answer earn nothing."""
    what = "completions had a well-formed answer"
    return _rate(history, "completions/answered_ratio", threshold, what, "format")


def format_rate(history: History, threshold: float) -> str | None:
    """Completions without the form that is rewarded."""
    what = "completions had the form that the prompt requires"
    return _rate(history, "completions/format_ratio", threshold, what, "think_format")


def _rate(history: History, metric: str, threshold: float, what: str, reward: str) -> str | None:
    share = history.mean(metric)
    if share is None or share >= threshold or _rises(history.recent(metric)):
        return None
    symptom = f"only {_percent(share)} of {what} {_over(history, metric)}"
    cut = history.mean("completions/clipped_ratio") or 0.0
    if cut >= (1 - share) / 2:
        return f"{symptom}: {_percent(cut)} were cut off by the token limit: raise training.max_tokens"
    change = f"say it in prompt.system_prompt, or raise rewards.{reward}.weight"
    return f"{symptom}: the model does not keep to it: {change}"


def truncation(history: History, threshold: float) -> str | None:
    """Answers that are cut off are lost."""
    share = history.mean("completions/clipped_ratio")
    if share is None or share < threshold:
        return None
    symptom = f"{_percent(share)} of completions were cut off {_over(history, 'completions/clipped_ratio')}"
    if _rises(history.recent(_LENGTH)):
        return f"{symptom}, and they get longer: raise training.max_tokens, or add rewards.overlong_penalty"
    return f"{symptom}: the token limit is too low for this task: raise training.max_tokens"


def length_drift(history: History, factor: float) -> str | None:
    """Longer or shorter is fine where it pays in accuracy."""
    before, now = history.start(_LENGTH), history.mean(_LENGTH)
    if not before or now is None or before / factor < now < before * factor or _improved(history, history.first):
        return None
    symptom = f"completions have {now:.0f} tokens on average, after {before:.0f} at the start"
    symptom += f", and accuracy has not risen{_from_to(history, history.first, 'accuracy')}"
    if now < before:
        rewarded = [name for name in _LENGTH_REWARDS if f"rewards/{name}/mean" in history.names()]
        change = f"lower rewards.{rewarded[0]}.weight" if rewarded else "raise rewards.correctness.weight"
        return f"{symptom}: answers shrink because short ones pay: {change}"
    cut = history.mean("completions/clipped_ratio") or 0.0
    consequence = f" ({_percent(cut)} are cut off by now)" if cut > 0 else ""
    change = "add rewards.overlong_penalty, or set training.loss_type=dr_grpo"
    return f"{symptom}: length grows for its own sake{consequence}: {change}"


def entropy_collapse(history: History, part: float) -> str | None:
    """A policy that always gives the same answer has nothing to learn from; fine where it is right."""
    before, now, accuracy = history.start("entropy"), history.mean("entropy"), history.mean("accuracy")
    solved = accuracy is not None and accuracy >= TOO_EASY
    if not before or now is None or now >= before * part or solved or _rises(history.recent("accuracy")):
        return None
    at = "" if accuracy is None else f", at an accuracy of {accuracy:.2f} that does not rise"
    return (
        f"entropy fell from {before:.2g} to {now:.2g} nats a token{at}: the policy has stopped exploring: lower "
        "training.learning_rate, or raise training.temperature"
    )


def reward_hacking(history: History, least: float) -> str | None:
    """A rise of the reward without one of the accuracy; half of it is enough if accuracy falls. Since the window
    before, or the first one: a policy can find such a way fast or slowly."""
    steps = f"over the last {history.span('reward', 2)} steps"
    for before, when in ((history.earlier, steps), (history.first, "since the start")):
        if not before("reward") or not before("accuracy") or not history.recent("accuracy"):
            continue
        old, new = Mean.of(before("reward")), Mean.of(history.recent("reward"))
        gain = Mean.of(before("accuracy")).rise_to(Mean.of(history.recent("accuracy")))
        enough = least / 2 if gain <= -_SURE else least
        if new.value - old.value < enough or old.rise_to(new) < _SURE or gain > _NOISE:
            continue
        symptom = f"reward rose from {old.value:.2f} to {new.value:.2f} {when}"
        symptom += f", and accuracy did not{_from_to(history, before, 'accuracy')}"
        name = _what_rose(history, before)
        if name is None:
            return f"{symptom}: the policy is paid for something else than being right: look at rewards"
        rose = _from_to(history, before, f"rewards/{name}/mean")
        change = f"lower rewards.{name}.weight, or set rewards.{name}.when=correct"
        return f"{symptom}: it is {name} that rose{rose}: {change}"
    return None


def kl_spike(history: History, factor: float) -> str | None:
    """KL of the policy from the reference model, or from its sampler."""
    if spike := _spike(history, "kl", factor, KL_FLOOR):
        return f"{spike}: an update went too far: lower training.learning_rate or training.max_grad_norm"
    if spike := _spike(history, "sampling/mismatch_kl", factor, KL_FLOOR):
        return f"{spike}: rollouts come from another policy than the one in training: lower engine.num_batches_ahead"
    return None


def ratio_spike(history: History, factor: float) -> str | None:
    """Several updates a batch move away from the policy that made it."""
    if spike := _spike(history, "policy_ratio/max", factor, RATIO_FLOOR):
        return f"{spike}: the updates of a batch go too far: lower training.num_iterations or training.learning_rate"
    return None


def grader_timeouts(history: History, threshold: float) -> str | None:
    """An answer that is not graded in time scores 0, right or not."""
    share = history.mean("status/timed_out")
    if not share or share < threshold:
        return None
    return (
        f"{_percent(share)} of answers took too long to grade {_over(history, 'status/timed_out')} and score 0: "
        "set grading=hardened, or make score_answer of your own task faster"
    )


def ungradable(history: History, threshold: float) -> str | None:
    """An answer that cannot be graded scores 0, right or not."""
    share = history.mean("status/ungradable")
    if not share or share < threshold:
        return None
    return (
        f"{_percent(share)} of answers could not be graded {_over(history, 'status/ungradable')} and score 0 "
        "(rollouts.jsonl says why): the rows are of another version, or were changed: build them again, without "
        "splits.manifest"
    )


RULES: dict[str, Callable[[History, float], str | None]] = {
    rule.__name__: rule
    for rule in (
        zero_variance, answer_rate, format_rate, truncation, length_drift, entropy_collapse, reward_hacking, kl_spike,
        ratio_spike, grader_timeouts, ungradable,
    )
}  # fmt: skip
"""By name; each returns the message of its alarm, or None if all is well."""


def _rises(values: list[float]) -> bool:
    """Whether the second half is above the first, by more than noise."""
    half = len(values) // 2
    return half > 0 and Mean.of(values[:half]).rise_to(Mean.of(values[-half:])) > 2 * _NOISE


def _improved(history: History, before: Window) -> bool:
    """Whether accuracy, or where it is not known the reward, has risen since that window."""
    name = "accuracy" if history.recent("accuracy") else "reward"
    old, new = before(name), history.recent(name)
    return bool(old and new) and Mean.of(old).rise_to(Mean.of(new)) > _NOISE


def _what_rose(history: History, before: Window) -> str | None:
    """The reward that rose most, by its noise, of those that pay for something else than being right."""
    rises: dict[str, float] = {}
    for metric in history.names():
        name = metric.removeprefix("rewards/").removesuffix("/mean")
        if metric == f"rewards/{name}/mean" and name not in ("correctness", "partial") and before(metric):
            rises[name] = Mean.of(before(metric)).rise_to(Mean.of(history.recent(metric)))
    best = max(rises, key=lambda name: rises[name], default=None)
    return best if best is not None and rises[best] >= _SURE else None


def _spike(history: History, metric: str, factor: float, floor: float) -> str | None:
    value, before = history.latest(metric), history.recent(metric)[:-1]
    if value is None or not before or value < floor:
        return None
    middle = median(before)
    if value < factor * middle:
        return None
    times = f"{value / middle:.0f} times" if middle > 0 else "far above"
    return f"{metric} is {value:.3g}, {times} its median over the last {history.span(metric)} steps"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _over(history: History, metric: str) -> str:
    return f"over the last {history.span(metric)} steps"


def _from_to(history: History, before: Window, metric: str) -> str:
    old, new = before(metric), history.recent(metric)
    if not old or not new:
        return ""
    return f" ({sum(old) / len(old):.2f} to {sum(new) / len(new):.2f})"


@dataclass(frozen=True)
class Alarm:
    """A rule has fired."""

    step: int
    rule: str
    message: str
    """What is the matter, the likely cause, and what to change."""

    @property
    def line(self) -> str:
        return f"step {self.step}: monitor {self.rule}: {self.message}"


class Monitors:
    """The rules that `config` has on, and what they have seen."""

    def __init__(self, config: MonitorsConfig):
        self._history = History(config.window)
        self._thresholds: dict[str, float] = {name: getattr(config, name) for name in config.active()}
        self._calm: dict[str, int] = {}
        """Of the rules that have fired: for how many records in a row they have been well since."""

    def see(self, record: Mapping[str, Any]) -> list[Alarm]:
        """Add a line of metrics, and return the alarms that fire now. Lines without a loss, which are not of a training
        step, are ignored."""
        if "loss" not in record:
            return []
        self._history.add(record)
        found = {name: RULES[name](self._history, threshold) for name, threshold in self._thresholds.items()}
        alarms = [
            Alarm(self._history.step, name, message)
            for name, message in found.items()
            if message is not None and name not in self._calm
        ]
        for name, message in found.items():
            if message is not None:
                self._calm[name] = 0
            elif name in self._calm:
                self._calm[name] += 1
                if self._calm[name] >= self._history.window:
                    del self._calm[name]
        return alarms


class MonitorCallback(TrainerCallback):
    """Shows `config`'s monitors what is logged.

    Args:
        config: default: all rules, with their default thresholds.
        say: where lines go, on the main process; default: standard output.
    """

    def __init__(self, config: MonitorsConfig | None = None, say: Callable[[str], Any] | None = None):
        self.config = config or MonitorsConfig()
        self.say: Callable[[str], Any] = say or (lambda line: print(line, flush=True))
        self.alarms: list[Alarm] = []
        """All of the run, earlier parts of it included; on the main process."""
        self.stopped_by: str | None = None
        """The rule that ended the run; on all processes."""
        self._monitors = Monitors(self.config)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stopped_by, self._monitors = None, Monitors(self.config)
        self.alarms = [alarm for record in state.log_history for alarm in self._monitors.see(record)]

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        record = {"step": state.global_step, **(logs or {})}
        if "loss" not in record:  # evaluations are logged by the main process alone
            return
        if self.config.stop_on:
            self.stopped_by = on_main(processes(), lambda: self._check(record))
            control.should_training_stop = control.should_training_stop or self.stopped_by is not None
        elif state.is_world_process_zero:
            self._check(record)

    def _check(self, record: dict[str, Any]) -> str | None:
        """Print alarms; returns the rule that ends the run, if one does."""
        alarms = self._monitors.see(record)
        self.alarms += alarms
        ends = next((alarm.rule for alarm in alarms if alarm.rule in self.config.stop_on), None)
        for alarm in alarms:
            self.say(f"{alarm.line} (the run ends here: monitors.stop_on)" if alarm.rule == ends else alarm.line)
        return ends
