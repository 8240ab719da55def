"""An evaluation from its config to its files.

    results, folder = run_evaluation(load_eval_config("configs/eval/tiny.yaml"))
    results.models["trained"].accuracy

config.yaml           what was asked for, resolved
rollouts.jsonl        a line a rollout
external/             answers to external benchmarks, and lm-eval's own results
results_*.json, summary.md, comparison_*.png, summary_*.png
"""

import asyncio
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rg_env.core.config.yaml12 import to_yaml
from rg_env.core.run_folder import free_folder, write_aside
from rg_env.core.text import one_line, reason_of
from rg_env.errors import InputError, OutputFolderError, ServerError
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.lm_eval.client import Harness
from rg_env.evaluation.lm_eval.requests import Benchmark, answer_file
from rg_env.evaluation.progress import Progress
from rg_env.evaluation.results import AllResults
from rg_env.evaluation.runner import Outcome, Pair, evaluate, make_pairs, questions_of
from rg_env.evaluation.servers import can_serve
from rg_env.evaluation.summary import results_of, write_results

CONFIG_FILE = "config.yaml"
_MAY_DIFFER = ("requests", "serving", "output", "published")
"""Sections that change no rollout: an evaluation may go on with others."""


def run_evaluation(config: EvalConfig, *, resume: bool = False) -> tuple[AllResults, Path]:
    """Ask, score, and write all files; returns the results, and the folder of the files.

    Args:
        resume: go on with what `config.output.dir` holds; failed calls are made again.

    Raises:
        InputError: something cannot be evaluated as asked.
        MissingExtraError: external benchmarks are asked for, and lm-eval is not installed.
        OutputFolderError: the folder holds files already, or cannot be written.
        RGEnvError: lm-eval cannot grade the answers: they are kept, and `resume` goes on.
        ServerError: a model could not be asked to the end: what there is is kept, and `resume` goes on.
    """
    folder = _folder(config, resume)
    tasks = questions_of(config)
    pairs = make_pairs(config, tasks)
    with ExitStack() as stack:
        harness = stack.enter_context(Harness(config)) if config.external.tasks else None
        benchmarks = harness.prepare() if harness else []
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_aside(folder / CONFIG_FILE, to_yaml(config.model_dump(mode="json")))
        if harness:
            stack.callback(harness.keep_log, folder)
            stack.enter_context(answer_file(folder, benchmarks))
        outcome = _asked(config, folder, pairs, benchmarks)
        stack.callback(_tell, outcome)  # after the files: whoever reads standard output may be gone
        _check_whole(outcome, folder)
        external = [harness.score(each, folder) for each in benchmarks] if harness else []
        results = results_of(config, outcome, _engines(config), external, harness.version if harness else "")
        with _writing(folder):
            files = write_results(results, folder)
            if results.tasks:
                _draw(results, files)
    return results, folder


def _asked(config: EvalConfig, folder: Path, pairs: list[Pair], benchmarks: list[Benchmark]) -> Outcome:
    """All that is missing, asked."""
    with Progress() as progress:
        try:
            outcome = asyncio.run(evaluate(config, folder, pairs, progress.show, benchmarks))
        except KeyboardInterrupt:
            progress.close()
            made, asked = (sum(getattr(work, name) for work in (*pairs, *benchmarks)) for name in ("made", "asked"))
            print(f"{made:,} of {asked:,} rollouts are in {folder}: go on with {_go_on(folder)}", flush=True)
            raise
        progress.show(outcome)
    return outcome


def _check_whole(outcome: Outcome, folder: Path) -> None:
    """Raise `ServerError` where a model could not be asked to the end, or never answered."""
    if outcome.problems:
        told = "; ".join(f"{name}: {problem}" for name, problem in outcome.problems.items())
        raise ServerError(f"{told}; no results are written. Go on with {_go_on(folder)}")
    _refuse_all_failed(outcome)


def _go_on(folder: Path) -> str:
    """The options that go on, of `rg-env eval` and of `rg-env probe`."""
    return f"--resume --output-dir {shlex.quote(str(folder))}"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """What cannot be written there is told: somebody removed the folder, or took the right to write there."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise OutputFolderError(
            f"cannot write {error.filename or folder}: {error.strerror}; mend that, and go on with {_go_on(folder)}"
        ) from error


def _folder(config: EvalConfig, resume: bool) -> Path:
    if resume and config.output.dir is None:
        raise InputError("--resume needs output.dir: the folder of the evaluation that is to go on")
    name = f"eval-{'+'.join([*config.tasks, *config.external.tasks][:3])}"
    folder = free_folder(
        config.output.dir, name, may_have_files=resume, remedy="choose another output.dir", resume="--resume"
    )
    if resume and folder.exists():
        _check_same(config, folder)
    return folder


def _check_same(config: EvalConfig, folder: Path) -> None:
    """Raise `InputError` unless the evaluation in `folder` asks what `config` asks."""
    from rg_env.core.config import yaml12

    file = folder / CONFIG_FILE
    try:
        before: Any = yaml12.load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OutputFolderError(f"{folder} holds no evaluation that could go on: it has no {CONFIG_FILE}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {reason_of(error)}: choose another output.dir") from error
    now = config.model_dump(mode="json")
    before = before if isinstance(before, dict) else {}
    if differing := [key for key in now if key not in _MAY_DIFFER and now[key] != before.get(key)]:
        raise InputError(
            f"the evaluation in {folder} has other {' and '.join(differing)}: give the same, or another output.dir"
        )


def _engines(config: EvalConfig) -> dict[str, str]:
    kind = config.serving.kind
    local = ("vllm" if can_serve() else "embedded") if kind == "auto" else kind
    return {name: "endpoint" if model.url else local for name, model in config.models.items()}


def _tell(outcome: Outcome) -> None:
    """What a reader of the figures has to know."""
    for pair in outcome.pairs:
        if pair.tally.left_out:
            print(f"{pair.model}, {pair.task.name}: {pair.tally.left_out} questions left out: it was trained on them")
    for work in outcome.works:
        if work.failed:
            print(f"{work.model}, {work.label}: {work.failed} calls failed, and count as wrong answers")
    if outcome.strangers:
        print(f"rollouts.jsonl has {outcome.strangers:,} rollouts of what is not asked: they do not count")
    for name, others in outcome.answered_as.items():
        print(f"{name}: answered as {', '.join(one_line(each) for each in sorted(others)[:3])}")


def _refuse_all_failed(outcome: Outcome) -> None:
    for work in outcome.works:
        if work.asked and work.failed == work.asked:
            where = "rollouts.jsonl" if isinstance(work, Pair) else "external/answers.jsonl"
            what = f"{work.model}, {work.label}: all {work.asked} calls failed"
            raise ServerError(f"{what}: that is no result; {where} says why (error)")


def _draw(results: AllResults, files: dict[str, Path]) -> None:
    from rg_env.evaluation.plots.summary import summary_picture
    from rg_env.evaluation.plots.task import comparison_picture

    for name, task in results.tasks.items():
        stem = files[name].name.removeprefix("results_").removesuffix(".json")
        comparison_picture(task, files[name].with_name(f"comparison_{stem}.png"))
    stem = files[""].name.removeprefix("results_").removesuffix(".json")
    summary_picture(results, files[""].with_name(f"summary_{stem}.png"))
