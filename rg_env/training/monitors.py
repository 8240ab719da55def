"""Monitors for a run's logged metrics, and the guard against non-finite steps. Each rule reports a symptom, the likely
cause and the key to change.

    monitors = MonitorCallback(MonitorsConfig())
    for record in records:                 # dicts, as in metrics.jsonl
        for alarm in monitors.see(record):
            print(alarm.line)

    GRPOTrainer(..., callbacks=[MonitorCallback(MonitorsConfig(stop_on=["reward_hacking"]))])

`train` adds a `MonitorCallback` to every run. When a run is resumed, the monitors continue from the metrics logged up
to the checkpoint, so earlier alarms are not reported again. A rule never fires if its metrics are not logged. Most
rules average metrics over a window. "Noise" is the variation of a metric from step to step.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from accelerate import Accelerator
from transformers import TrainerCallback

from rg_env.errors import StoppedTogether
from rg_env.inference.models import processes
from rg_env.training.algorithms.policy import finite_weights
from rg_env.training.collectives import agree, on_main
from rg_env.training.config.schema import MonitorsConfig
from rg_env.training.strategy import StepResult

_HUGE = 1e30
"""Maximum magnitude of recorded values, which keeps their squares finite."""


class History:
    """Metrics of a run's steps so far. A window is `window` consecutive values of a metric."""

    def __init__(self, window: int):
        self.window = window
        self.step = self.records = 0
        """Step of the last record, and number of records."""
        self.last: dict[str, float] = {}
        """The last record."""
        self.values: dict[str, list[float]] = defaultdict(list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a step's metrics. Values that are not numbers are ignored."""
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and value == value}
        self.last = {name: float(max(-_HUGE, min(_HUGE, value))) for name, value in numbers.items()}
        self.records += 1
        self.step = int(self.last.pop("step", self.step + 1))
        for name, value in self.last.items():
            self.values[name].append(value)

    def recent(self, name: str) -> list[float]:
        """Return the values in the last window, or an empty list until the window is full."""
        values = self.values[name]
        return values[-self.window :] if len(values) >= self.window else []

    def earlier(self, name: str) -> list[float]:
        """Return the values in the window before the last one, or an empty list until both windows are full."""
        values = self.values[name][-2 * self.window :]
        return values[: self.window] if len(values) == 2 * self.window else []

    def first(self, name: str) -> list[float]:
        """Return the values in the first window, or an empty list until a second window is full."""
        return self.values[name][: self.window] if self.earlier(name) else []

    def mean(self, name: str) -> float | None:
        """Return the mean over the last window, or None until the window is full."""
        return fmean(values) if (values := self.recent(name)) else None


def rise(old: list[float], new: list[float]) -> float:
    """Return the rise in the mean from `old` to `new`, in standard errors of the difference. The result is negative if
    the mean falls."""

    def error(values: list[float]) -> float:
        return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0

    difference, noise = fmean(new) - fmean(old), math.hypot(error(old), error(new))
    if noise > 0:
        return difference / noise
    return 0.0 if difference == 0 else math.copysign(math.inf, difference)


TOO_EASY, TOO_HARD = 0.8, 0.2
"""Bounds on accuracy. If accuracy is outside this range, the difficulty of the tasks is considered the cause of groups
with equal rewards."""
KL_FLOOR = 0.1
"""Minimum KL for a spike, in nats per token, because KL starts near zero."""
_SURE, _NOISE = 3.0, 1.0
"""Thresholds for a change in a mean, in standard errors. A change above `_SURE` is considered certain, and a change
below `_NOISE` is considered noise."""
_CUT = "completions/clipped_ratio"

Window = Callable[[str], list[float]]
"""Function that returns a metric's values in a window, or an empty list if the window is incomplete."""


def zero_variance(history: History, threshold: float) -> str | None:
    """Check for too many groups with equal rewards, which provide no learning signal."""
    share, accuracy = history.mean("frac_reward_zero_std"), history.mean("accuracy")
    if share is None or share < threshold:
        return None
    curriculum = any(name.startswith("curriculum/") for name in history.values)
    if accuracy is None:
        cause, change = "all answers receive the same reward", "change rewards, or raise training.temperature"
    elif accuracy >= TOO_EASY:
        cause = "the tasks are too easy for this model"
        change = "lower curriculum.success_threshold" if curriculum else "raise tasks.NAME.level"
    elif accuracy <= TOO_HARD:
        cause = "the tasks are too hard for this model"
        change = "raise curriculum.failure_threshold" if curriculum else "lower tasks.NAME.level"
    else:
        cause = "the answers to each question are all right or all wrong"
        change = "raise training.temperature" + ("" if curriculum else ", or set training.filter_groups=true")
    at = "" if accuracy is None else f" (accuracy {accuracy:.2f})"
    return f"{share:.0%} of groups had equal rewards: {cause}{at}; {change}"


def answer_rate(history: History, threshold: float) -> str | None:
    """Check for too few completions with a well-formed answer."""
    metric = "completions/answered_ratio"
    share, cut = history.mean(metric), history.mean(_CUT) or 0.0
    if share is None or share >= threshold or _rises(history.recent(metric)):
        return None
    cause = "the model does not follow the format"
    change = "describe the format in prompt.system_prompt, or raise rewards.format.weight"
    if cut >= (1 - share) / 2:
        cause, change = f"{cut:.0%} were cut off by the token limit", "raise training.max_tokens"
    return f"only {share:.0%} of completions had a well-formed answer: {cause}; {change}"


def truncation(history: History, threshold: float) -> str | None:
    """Check for too many completions that are cut off by the token limit."""
    share = history.mean(_CUT)
    if share is None or share < threshold:
        return None
    cause, change = "the token limit is too low for this task", "raise training.max_tokens"
    if _rises(history.recent("completions/mean_length")):
        cause, change = "completions are getting longer", f"{change}, or add rewards.overlong_penalty"
    return f"{share:.0%} of completions were cut off: {cause}; {change}"


def entropy_collapse(history: History, part: float) -> str | None:
    """Check for a collapse in entropy. A policy that always gives the same answer stops learning, which is harmless
    only if the answer is right."""
    first, now, accuracy = history.first("entropy"), history.mean("entropy"), history.mean("accuracy")
    before = fmean(first) if first else 0.0
    solved = accuracy is not None and accuracy >= TOO_EASY
    if not before or now is None or now >= before * part or solved or _rises(history.recent("accuracy")):
        return None
    at = "" if accuracy is None else f", and accuracy ({accuracy:.2f}) does not rise"
    return (
        f"entropy fell from {before:.2g} to {now:.2g} nats per token{at}: the policy has stopped exploring; lower "
        "training.learning_rate, or raise training.temperature"
    )


def reward_hacking(history: History, least: float) -> str | None:
    """Check for a rise in the reward without a rise in accuracy. If accuracy clearly falls, half the threshold is
    enough. The last window is compared with both the previous window and the first window because a policy can find an
    exploit quickly or slowly."""
    for before, when in ((history.earlier, "the previous window"), (history.first, "the start")):
        old, new, accuracy = before("reward"), history.recent("reward"), history.recent("accuracy")
        if not old or not before("accuracy") or not accuracy:
            continue
        gain = rise(before("accuracy"), accuracy)
        enough = least / 2 if gain <= -_SURE else least
        if fmean(new) - fmean(old) < enough or rise(old, new) < _SURE or gain > _NOISE:
            continue
        symptom = f"reward rose from {fmean(old):.2f} to {fmean(new):.2f} since {when}"
        symptom += f", and accuracy did not{_from_to(history, before, 'accuracy')}"
        name = _what_rose(history, before)
        if name is None:
            return f"{symptom}: the policy is rewarded for something other than correct answers; check rewards"
        rose = _from_to(history, before, f"rewards/{name}/mean")
        return f"{symptom}: {name} rose{rose}; lower rewards.{name}.weight, or set rewards.{name}.when=correct"
    return None


def kl_spike(history: History, factor: float) -> str | None:
    """Check for a jump in the policy's KL divergence from the reference policy or from the sampler."""
    change = "an update went too far; lower training.learning_rate or training.max_grad_norm"
    sampler = "rollouts were not sampled from the policy being trained; lower engine.num_batches_ahead"
    for metric, advice in (("kl", change), ("sampling/mismatch_kl", sampler)):
        value, before = history.last.get(metric), history.recent(metric)[:-1]
        if value is not None and before and value >= max(KL_FLOOR, factor * median(before)):
            return f"{metric} is {value:.3g}, and its median over the last window is {median(before):.3g}: {advice}"
    return None


def grader_timeouts(history: History, threshold: float) -> str | None:
    """Check for too many answers that are not graded in time. Such answers score 0 even if they are right."""
    what = "took too long to grade and scored 0: set grading=hardened, or make your task's score_answer faster"
    return _lost(history, "status/timed_out", threshold, what)


def ungradable(history: History, threshold: float) -> str | None:
    """Check for too many answers that cannot be graded. Such answers score 0 even if they are right."""
    what = (
        "could not be graded and scored 0 (rollouts.jsonl contains the reasons): the rows were edited or generated by "
        "another version of Reasoning Gym; rebuild the rows without splits.manifest"
    )
    return _lost(history, "status/ungradable", threshold, what)


def _lost(history: History, metric: str, threshold: float, what: str) -> str | None:
    share = history.mean(metric)
    return f"{share:.0%} of answers {what}" if share and share >= threshold else None


RULES: dict[str, Callable[[History, float], str | None]] = {
    rule.__name__: rule
    for rule in (
        zero_variance, answer_rate, truncation, entropy_collapse, reward_hacking, kl_spike, grader_timeouts, ungradable,
    )
}  # fmt: skip
"""Rules by name. Each rule returns an alarm's message, or None."""


def _rises(values: list[float]) -> bool:
    """Whether the mean of the second half exceeds the mean of the first half by more than `2 * _NOISE` standard
    errors."""
    half = len(values) // 2
    return half > 0 and rise(values[:half], values[-half:]) > 2 * _NOISE


def _what_rose(history: History, before: Window) -> str | None:
    """Return the reward other than `correctness` and `partial` that rose the most relative to its noise, or None if no
    such reward rose clearly."""
    rises: dict[str, float] = {}
    for metric in list(history.values):
        name = metric.removeprefix("rewards/").removesuffix("/mean")
        if metric == f"rewards/{name}/mean" and name not in ("correctness", "partial") and before(metric):
            rises[name] = rise(before(metric), history.recent(metric))
    best = max(rises, key=lambda name: rises[name], default=None)
    return best if best is not None and rises[best] >= _SURE else None


def _from_to(history: History, before: Window, metric: str) -> str:
    old, new = before(metric), history.recent(metric)
    return f" ({fmean(old):.2f} to {fmean(new):.2f})" if old and new else ""


@dataclass(frozen=True)
class Alarm:
    """An alarm raised by a rule."""

    step: int
    rule: str
    message: str
    """The symptom, the likely cause and the key to change."""

    @property
    def line(self) -> str:
        return f"step {self.step}: monitor {self.rule}: {self.message}"


class MonitorCallback(TrainerCallback):
    """Callback that checks logged metrics against the active rules in `config`, and adds `monitor/RULE` to a step's
    metrics when a rule fires.

    Args:
        config: rules and thresholds. Default: all rules with their default thresholds.
        say: called on the main process with each line to print. Default: lines are printed to standard output.
    """

    def __init__(self, config: MonitorsConfig | None = None, say: Callable[[str], Any] | None = None):
        self.config = config or MonitorsConfig()
        self.say: Callable[[str], Any] = say or (lambda line: print(line, flush=True))
        self._start()

    def _start(self) -> None:
        self.alarms: list[Alarm] = []
        """All alarms in the run, including alarms from before it was resumed. The list is complete only on the main
        process."""
        self.stopped_by: str | None = None
        """The rule that ended the run, or None. All processes have this value."""
        self._history = History(self.config.window)
        self._held_at: dict[str, int] = {}
        """Number of the last record in which a rule's condition held, by rule."""

    def see(self, record: Mapping[str, Any]) -> list[Alarm]:
        """Add a record of metrics and return the alarms that it raises. Records without a loss are ignored because they
        do not belong to a training step."""
        if "loss" not in record:
            return []
        history = self._history
        history.add(record)
        alarms = []
        for name in self.config.active():
            if (message := RULES[name](history, getattr(self.config, name))) is None:
                continue
            # A rule that has fired stays silent until its condition has been false for an entire window.
            if name not in self._held_at or history.records - self._held_at[name] > history.window:
                alarms.append(Alarm(history.step, name, message))
            self._held_at[name] = history.records
        self.alarms += alarms
        return alarms

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._start()
        for record in state.log_history:
            self.see(record)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        logs = {} if logs is None else logs
        if "loss" not in logs:  # evaluations are logged only on the main process
            return
        if self.config.stop_on:
            self.stopped_by = on_main(processes(), lambda: self._check(state.global_step, logs))
            control.should_training_stop = control.should_training_stop or self.stopped_by is not None
        elif state.is_world_process_zero:
            self._check(state.global_step, logs)

    def _check(self, step: int, logs: dict[str, Any]) -> str | None:
        """Print alarms and return the rule that ends the run, or None."""
        alarms = self.see({"step": step, **logs})
        ends = next((alarm.rule for alarm in alarms if alarm.rule in self.config.stop_on), None)
        for alarm in alarms:
            logs[f"monitor/{alarm.rule}"] = 1.0
            self.say(f"{alarm.line} (ends the run: see monitors.stop_on)" if alarm.rule == ends else alarm.line)
        return ends


MOST_IN_A_ROW = 3


class StepGuard:
    """Counts skipped steps, and ends the run if too many steps in a row are skipped, or if the weights are not finite
    after a skipped step."""

    def __init__(self, accelerator: Accelerator, learning_rate: float, bf16: bool) -> None:
        self._accelerator, self._learning_rate, self._bf16 = accelerator, learning_rate, bf16
        self.say: Callable[[str], Any] = lambda line: print(line, flush=True)
        self.skipped = 0
        """Number of skipped steps in the run so far."""
        self._in_a_row = 0
        self._what = ""

    def counts(self) -> list[int]:
        """Return the counts to pass to `set_counts` in a resumed run."""
        return [self.skipped, self._in_a_row]

    def set_counts(self, counts: list[int]) -> None:
        """Restore counts returned by `counts`."""
        self.skipped, in_a_row = counts
        self._in_a_row = in_a_row % MOST_IN_A_ROW  # the count starts over if the guard ended the run

    def count(self, result: StepResult, step: int) -> None:
        """Record the result of step number `step`."""
        if result.skipped is None:
            self._in_a_row = 0
            return
        self.skipped, self._what = self.skipped + 1, result.skipped
        if result.skipped == "gradient" and self._accelerator.mixed_precision == "fp16":
            return
        self._in_a_row += 1
        if self._accelerator.is_main_process:
            self.say(
                f"step {step}: skipped, non-finite {self._what} ({self._in_a_row}/{MOST_IN_A_ROW} consecutive); "
                "weights and optimizer unchanged"
            )

    def end_if_hopeless(self, model: Any, step: int) -> None:
        """Raise an exception after `MOST_IN_A_ROW` consecutive skipped steps, or if the weights are not finite after a
        skipped step.

        Raises:
            StoppedTogether, TrainingError: training cannot continue. The error is raised on all processes.
        """
        if not self._in_a_row:
            return
        overflow = (
            f"the weights are not finite after step {step} because an earlier update overflowed; lower "
            f"training.learning_rate ({self._learning_rate:g}) and resume from an earlier checkpoint"
        )
        agree(self._accelerator, None if finite_weights(model) else overflow)
        if self._in_a_row >= MOST_IN_A_ROW:
            bf16 = ", or set training.bf16=false" if self._bf16 else ""
            raise StoppedTogether(
                f"{MOST_IN_A_ROW} consecutive steps were skipped, up to step {step}: non-finite {self._what} (weights "
                f"are unchanged); lower training.learning_rate or training.max_grad_norm{bf16}, and resume with "
                "--resume auto"
            )
