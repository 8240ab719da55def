"""An evaluation from its config to its files.

    results, folder = run_evaluation(load_eval_config("configs/eval/tiny.yaml"))
    results.models["trained"].accuracy

config.yaml           the resolved config
rollouts.jsonl        a line for each rollout
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
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bars

from rg_env.core.config import yaml12
from rg_env.core.run_folder import free_folder, write_aside
from rg_env.core.text import one_line, reason_of
from rg_env.errors import InputError, OutputFolderError, ServerError
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.lm_eval.client import Benchmark, Harness
from rg_env.evaluation.models import can_serve
from rg_env.evaluation.questions import as_trained
from rg_env.evaluation.results import Results
from rg_env.evaluation.runner import ROLLOUTS, Outcome, TaskWork, Work, ask_all, make_works
from rg_env.evaluation.summary import Source, results_of, write_results

CONFIG_FILE = "config.yaml"
_MAY_DIFFER = ("requests", "serving", "output", "published")
"""Sections that change no rollout: an evaluation may be resumed with others."""
_LINE_EVERY_S = 15.0
_MOST_BARS = 30


def run_evaluation(config: EvalConfig, *, resume: bool = False) -> tuple[Results, Path]:
    """Ask, score, and write all files; returns the results, and the folder of the files.

    Args:
        resume: continue with the contents of `config.output.dir`; failed calls are made again.

    Raises:
        InputError: something cannot be evaluated as configured.
        MissingExtraError: external benchmarks are wanted, and lm-eval is not installed.
        OutputFolderError: the folder holds files already, or cannot be written.
        RGEnvError: lm-eval cannot grade the answers: they are kept for `resume`.
        ServerError: a model could not be asked to the end: the answers so far are kept for `resume`.
    """
    config, notes = as_trained(config)
    folder = _folder(config, resume)
    works = make_works(config)
    with ExitStack() as stack:
        harness = stack.enter_context(Harness(config)) if config.external.tasks else None
        benchmarks = harness.prepare() if harness else []
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_aside(folder / CONFIG_FILE, yaml12.to_yaml(config.model_dump(mode="json")))
        if harness:
            stack.callback(harness.keep_log, folder)
            stack.enter_context(harness.answer_file(folder, benchmarks))
        for note in notes:
            print(note, flush=True)
        outcome = _ask(config, folder, [*works, *benchmarks])
        stack.callback(_print_notes, outcome)  # after the files: standard output may be closed
        _check_complete(outcome, folder)
        kind = config.serving.kind
        local_engine = ("vllm" if can_serve() else "embedded") if kind == "auto" else kind
        results = results_of(
            works,
            {name: Source.of(config, name, local_engine) for name in config.models},
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


def _ask(config: EvalConfig, folder: Path, works: Sequence[Work]) -> Outcome:
    with Progress() as progress:
        try:
            outcome = asyncio.run(ask_all(config, folder, works, progress.show))
        except KeyboardInterrupt:
            progress.close()
            made, asked = (sum(getattr(work, name) for work in works) for name in ("made", "asked"))
            print(f"{made:,} of {asked:,} rollouts are in {folder}: resume with {_resume(folder)}", flush=True)
            raise
        progress.show(outcome)
    return outcome


def _check_complete(outcome: Outcome, folder: Path) -> None:
    """Raise `ServerError` if a model could not be asked to the end, or never answered."""
    if outcome.problems:
        problems = "; ".join(f"{name}: {problem}" for name, problem in outcome.problems.items())
        raise ServerError(f"{problems}; no results are written. Resume with {_resume(folder)}")
    for work in outcome.works:
        if work.asked and work.failed == work.asked:
            where = "external/answers.jsonl" if isinstance(work, Benchmark) else ROLLOUTS
            what = f"{work.model}, {work.label}: all {work.asked} calls failed"
            raise ServerError(f"{what}: that is not a result; {where} has the reasons (error)")


def _resume(folder: Path) -> str:
    """The options that resume, of `rg-env eval` and of `rg-env probe`."""
    return f"--resume --output-dir {shlex.quote(str(folder))}"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Report what cannot be written: somebody removed the folder, or the right to write there."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise OutputFolderError(
            f"cannot write {error.filename or folder}: {error.strerror}; fix that and resume with {_resume(folder)}"
        ) from error


def _folder(config: EvalConfig, resume: bool) -> Path:
    if resume and config.output.dir is None:
        raise InputError("--resume needs output.dir: the folder of the evaluation to resume")
    name = f"eval-{'+'.join([*config.tasks, *config.external.tasks][:3])}"
    folder = free_folder(
        config.output.dir, name, may_have_files=resume, remedy="choose another output.dir", resume="--resume"
    )
    if resume and folder.exists():
        _check_same(config, folder)
    return folder


def _check_same(config: EvalConfig, folder: Path) -> None:
    """Raise `InputError` unless the evaluation in `folder` asks the same as `config`."""
    file = folder / CONFIG_FILE
    try:
        before: Any = yaml12.load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OutputFolderError(f"{folder} does not hold an evaluation to resume: it has no {CONFIG_FILE}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {reason_of(error)}: choose another output.dir") from error
    now = config.model_dump(mode="json")
    before = before if isinstance(before, dict) else {}
    if differing := [key for key in now if key not in _MAY_DIFFER and now[key] != before.get(key)]:
        raise InputError(
            f"the evaluation in {folder} has other {' and '.join(differing)}: give the same, or another output.dir"
        )


def _print_notes(outcome: Outcome) -> None:
    """Print what a reader of the figures has to know."""
    for work in outcome.works:
        if isinstance(work, TaskWork) and work.tally.left_out:
            print(f"{work.model}, {work.label}: {len(work.tally.left_out)} questions left out: it was trained on them")
        if work.failed:
            print(f"{work.model}, {work.label}: {work.failed} calls failed, and count as wrong answers")
    if outcome.strangers:
        print(f"{ROLLOUTS} has {outcome.strangers:,} rollouts of other questions: they do not count")
    for name, others in outcome.answered_as.items():
        print(f"{name}: answered as {', '.join(one_line(each) for each in sorted(others)[:3])}")


def _draw(results: Results, files: dict[str, Path]) -> None:
    from rg_env.evaluation.plots.results import plot_results

    for name in results.tasks:
        stem = files[name].name.removeprefix("results_").removesuffix(".json")
        plot_results(results.of_task(name), files[name].with_name(f"comparison_{stem}.png"))
    stem = files[""].name.removeprefix("results_").removesuffix(".json")
    plot_results(results, files[""].with_name(f"summary_{stem}.png"))


class Progress:
    """The state of an evaluation: a bar for each model and task on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._bars: Any = None
        self._ids: dict[int, Any] = {}
        self._last = time.monotonic()
        self._done: set[int] = set()

    def __enter__(self) -> "Progress":
        if sys.stdout.isatty():
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            self._bars = Bars(*columns, console=Console(highlight=False))
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal as it is."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def show(self, outcome: Outcome) -> None:
        """Update to `outcome`."""
        due = time.monotonic() - self._last >= _LINE_EVERY_S
        for work in outcome.works:
            if self._bars is not None:
                self._bar(work)
            elif id(work) not in self._done and work.made >= work.asked:
                self._done.add(id(work))
                self._line(work)
            elif due and work.began is not None and id(work) not in self._done:
                self._line(work)

    def _bar(self, work: Work) -> None:
        if id(work) not in self._ids:
            if work.began is None or len(self._ids) >= _MOST_BARS:
                return
            name = f"{work.model} · {work.label}"
            self._ids[id(work)] = self._bars.add_task(name, total=work.asked, left="")
        self._bars.update(self._ids[id(work)], completed=work.made, left=_left(work))

    def _line(self, work: Work) -> None:
        self._last = time.monotonic()
        left = _left(work)
        line = f"{work.model} · {work.label}: {work.made:,} of {work.asked:,}{', ' if left else ''}{left}"
        with contextlib.suppress(OSError):  # closed, or a full disk: that is reported after the results
            print(line, flush=True)


def _left(work: Work) -> str:
    seconds = work.seconds_left
    if seconds is None or work.made >= work.asked:
        return ""
    return f"{seconds:.0f} s left" if seconds < 100 else f"{seconds / 60:.0f} min left"
