"""Run an evaluation from its config, and write its files.

    results, folder = run_evaluation(load_eval_config("configs/eval/tiny.yaml"))
    results.models["trained"].accuracy

config.yaml           the resolved config
rollouts.jsonl        one line per rollout
external/             answers to external benchmarks, and lm-eval's own results
results_*.json, summary.md, comparison_*.png, summary_*.png
"""

import asyncio
import contextlib
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from rg_env.core.config import yaml12
from rg_env.core.run_folder import free_folder, locked, read_yaml, removed_on_error, write_aside
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.option_values import check_options
from rg_env.core.text import counted, one_line
from rg_env.errors import InputError, OutputFolderError, ServerError
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.external import FOLDER, LOG, Harness, check_tasks
from rg_env.evaluation.models import key_of
from rg_env.evaluation.questions import Questions, draw
from rg_env.evaluation.results import Results
from rg_env.evaluation.runner import FAILED, Outcome, TaskWork, Work, ask_all, make_works
from rg_env.evaluation.scores import Source, results_of, write_results
from rg_env.evaluation.trained import as_trained

CONFIG_FILE = "config.yaml"
_MAY_DIFFER = ("requests", "serving", "output", "published")
"""Sections that do not affect rollouts, and may therefore differ when an evaluation is resumed."""
_LINE_EVERY_S = 15.0
_MOST_BARS = 30


def run_evaluation(config: EvalConfig, *, resume: bool = False) -> tuple[Results, Path]:
    """Evaluate all models, write all files, and return the results and the output folder.

    Args:
        resume: continue the evaluation in `config.output.dir`; failed calls are repeated.

    Raises:
        InputError: a model or task cannot be evaluated as configured.
        MissingExtraError: external benchmarks need lm-eval, which is not installed.
        OutputFolderError: the folder already contains files, or is not writable.
        RGEnvError: lm-eval cannot grade the answers; they are kept for `resume`.
        ServerError: a model could not be evaluated completely; the answers so far are kept for `resume`.
    """
    config, notes, folder = prepared(config, resume=resume)
    _say(*config.plan(), *notes, f"files in {folder}")
    works = make_works(config, _drawn(config))
    with ExitStack() as stack:
        harness = stack.enter_context(Harness(config)) if config.external.tasks else None
        benchmarks = harness.prepare() if harness else []
        stack.enter_context(removed_on_error(folder))
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder, f"another evaluation is writing to {folder}: wait for it, or stop it"))
            stack.enter_context(_removed_if_unanswered(folder))
            write_aside(folder / CONFIG_FILE, yaml12.to_yaml(config.model_dump(mode="json")))
        if harness:
            stack.callback(harness.keep_log, folder)
        outcome = _ask(config, folder, [*works, *benchmarks])
        stack.callback(_print_notes, outcome)  # after writing the files, because standard output may be closed
        _check_complete(outcome, folder)
        results = results_of(
            works,
            {name: Source.of(config, name) for name in config.models},
            published=config.published,
            external=[harness.score(each, folder) for each in benchmarks] if harness else [],
            lm_eval=harness.version if harness else "",
            notes=notes,
        )
        with _writing(folder):
            files = write_results(results, folder)
            if results.tasks:
                _draw(results, files)
    return results, folder


@contextmanager
def _removed_if_unanswered(folder: Path) -> Iterator[None]:
    """On an error before the first answer, remove the new files, so that the corrected command can use the folder.

    Nothing is removed if the folder contained files beforehand, or if anything else was written to it since, such as a
    server's log.
    """
    had_files = any(folder.iterdir())
    try:
        yield
    except Exception:
        with contextlib.suppress(OSError):
            files = [file for file in folder.rglob("*") if not file.is_dir()]
            unanswered = {folder / CONFIG_FILE, folder / FOLDER / LOG}
            if not had_files and all(file in unanswered or not file.stat().st_size for file in files):
                for file in files:
                    file.unlink()
                (folder / FOLDER).rmdir()
        raise


def prepared(config: EvalConfig, *, resume: bool = False) -> tuple[EvalConfig, list[str], Path]:
    """Return the config with settings filled in from training runs, notes about these settings, and the output folder.
    Heavy packages are not imported.

    Raises:
        InputError: a model's folder or an API key is missing, a run's file or `data` is damaged, a task's options are
            invalid, an external benchmark's name is unknown, or the output folder contains a different evaluation.
        MissingExtraError: external benchmarks need lm-eval, which is not installed.
        OutputFolderError: the folder already contains files, or is not writable.
    """
    config, notes = as_trained(config)
    for model in config.models.values():
        if model.url:
            key_of(model)
    if config.data and config.data.is_file:
        config.data.rows()
    check_options({f"tasks.{name}": Mixture.parse(config.gym(name)).tasks[0] for name in config.tasks})
    if config.external.tasks:
        check_tasks(config)
    return config, notes, _folder(config, resume)


def _drawn(config: EvalConfig) -> Iterator[Questions]:
    """Yield the questions for each task, printing progress occasionally, because generating them can take minutes."""
    last = time.monotonic()
    for number, name in enumerate(config.names):
        if time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            _say(f"drawing questions: {number} of {len(config.names)} tasks")
        yield draw(config, name)


def _ask(config: EvalConfig, folder: Path, works: Sequence[Work]) -> Outcome:
    try:
        with Progress() as progress:
            outcome = asyncio.run(ask_all(config, folder, works, progress.show))
            progress.show(outcome)
    except KeyboardInterrupt:
        made, asked = sum(work.made for work in works), sum(work.asked for work in works)
        print(f"{made:,} of {asked:,} rollouts are in {folder}: resume with {_resume(folder)}", flush=True)
        raise
    return outcome


def _check_complete(outcome: Outcome, folder: Path) -> None:
    """Raise `ServerError` if a model could not be evaluated completely, or all of its calls for a task failed."""
    if outcome.problems:
        problems = "; ".join(f"{name}: {problem}" for name, problem in outcome.problems.items())
        raise ServerError(f"{problems}; no results are written. Resume with {_resume(folder)}")
    for work in outcome.works:
        for answers in work.groups():
            if answers and all(each.status == FAILED for each in answers):
                what = f"{work.model}, {work.label}: all calls failed ({len(answers)})"
                raise ServerError(
                    f"{what}, so there is no result; {work.file} has the reasons, such as {work.last_error}"
                )


def _resume(folder: Path) -> str:
    """Options that make `rg-env eval` or `rg-env probe` resume the evaluation."""
    return f"--resume --output-dir {shlex.quote(str(folder))}"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Raise `OutputFolderError` if a file cannot be written because the folder was removed or is no longer writable."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise OutputFolderError(
            f"cannot write {error.filename or folder}: {error.strerror}; fix that and resume with {_resume(folder)}"
        ) from error


def _folder(config: EvalConfig, resume: bool) -> Path:
    if resume and config.output.dir is None:
        raise InputError("--resume needs output.dir: the folder of the evaluation to resume")
    name = f"eval-{'+'.join([*config.names, *config.external.tasks][:3])}"
    folder = free_folder(
        config.output.dir, name, may_have_files=resume, remedy="choose another output.dir", resume="--resume"
    )
    if resume and folder.exists():
        _check_same(config, folder)
    return folder


def _check_same(config: EvalConfig, folder: Path) -> None:
    """Raise `InputError` unless the evaluation in `folder` has the same questions and sampling as `config`."""
    if not (folder / CONFIG_FILE).exists():
        raise OutputFolderError(f"{folder} does not contain an evaluation to resume: it has no {CONFIG_FILE}")
    before, now = read_yaml(folder / CONFIG_FILE), config.model_dump(mode="json")
    if differing := [key for key in now if key not in _MAY_DIFFER and now[key] != before.get(key)]:
        *first, last = differing
        keys = f"{', '.join(first)} and {last}" if first else last
        raise InputError(f"the evaluation in {folder} has different {keys}: use the same values, or another output.dir")


def _print_notes(outcome: Outcome) -> None:
    """Print notes needed to interpret the results."""
    for work in outcome.works:
        if isinstance(work, TaskWork) and work.left_out:
            count = counted(work.left_out, "question")
            print(f"{work.model}, {work.label}: {count} left out (used to train the model)")
        if work.failed:
            print(f"{work.model}, {work.label}: {counted(work.failed, 'failed call')} (counted as wrong)")
    for file, strangers in outcome.strangers.items():
        if strangers:
            print(f"{file} has {counted(strangers, 'rollout')} for other questions (not counted)")
    for name, others in outcome.answered_as.items():
        print(f"{name}: the server reports the model as {', '.join(one_line(each) for each in sorted(others)[:3])}")


def _draw(results: Results, files: dict[str, Path]) -> None:
    from rg_env.evaluation.plots.results import plot_results

    for name, file in files.items():
        kind, shown = ("comparison", results.of_task(name)) if name else ("summary", results)
        plot_results(shown, file.with_name(f"{kind}_{file.stem.removeprefix('results_')}.png"))


class Progress:
    """Progress of an evaluation: one bar per model and task on a terminal, otherwise an occasional line."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        console = Console(highlight=False)
        # Without a terminal, the bars are never shown; they are only used to estimate the remaining time.
        self._bars = Bars(*columns, TimeRemainingColumn(), console=console, speed_estimate_period=600)
        self._tasks: dict[Work, Task] = {}
        self._is_terminal = sys.stdout.isatty()
        self._last = time.monotonic()

    def __enter__(self) -> "Progress":
        if self._is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._bars.stop()

    def show(self, outcome: Outcome) -> None:
        """Update the display from `outcome`."""
        due = time.monotonic() - self._last >= _LINE_EVERY_S
        for work in outcome.works:
            if work not in self._tasks:
                if not work.has_begun and work.made < work.asked:
                    continue
                name, visible = f"{work.model} · {work.label}", len(self._tasks) < _MOST_BARS
                self._bars.add_task(name, total=work.asked, visible=visible)
                self._tasks[work] = self._bars.tasks[-1]
            task = self._tasks[work]
            was_finished = task.finished
            self._bars.update(task.id, completed=work.made)
            if not self._is_terminal and not was_finished and (task.finished or due):
                self._last = time.monotonic()
                left = f", {_duration(task.time_remaining)} left" if task.time_remaining else ""
                _say(f"{task.description}: {work.made:,} of {work.asked:,}{left}")


def _say(*lines: str) -> None:
    with contextlib.suppress(OSError):  # closed output or a full disk is reported after the results
        print(*lines, sep="\n", flush=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
