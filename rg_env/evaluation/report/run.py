"""The page of a training run, from the files in its folder (see `RunFolder`)."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.config import yaml12
from rg_env.core.json_values import dict_of, json_lines, number_of, read_json, whole_of
from rg_env.core.run_folder import RunFolder
from rg_env.errors import InputError
from rg_env.evaluation.report.curves import Evaluation, add_curves, add_tables
from rg_env.evaluation.report.parts import Metrics, Page, Text
from rg_env.evaluation.report.rollouts import Record, Source, evaluation_records, gather, line_source

POINTS = 1_000
"""Of a metric in a page; of more, evenly spaced ones."""


def is_run(folder: Path) -> bool:
    """Whether a training run, or an evaluation of a checkpoint alone, has left anything there to look at."""
    names = ("metrics.jsonl", "train_results.json")
    return any((folder / name).is_file() for name in names) or any(folder.glob("eval_results/eval_step_*.json"))


def run_page(folder: Path, limit: int) -> Page:
    """The report of the run in `folder`, with at most so many rollouts.

    Raises:
        InputError: a file cannot be read, or there is nothing in them.
    """
    page = Page(folder.resolve().name, "training run")
    evaluations = _evaluations(folder, page.notes)
    _add_facts(page, folder, evaluations)
    _add_metrics(page, folder)
    add_curves(page, evaluations)
    if evaluations:
        add_tables(page, evaluations)
    prompt = _add_texts(page, folder)
    sources = [Source(each.file.name, partial(_rollouts_of, each)) for each in evaluations]
    if (file := folder / "rollouts.jsonl").is_file():
        sources.append(line_source(file, training=True))
    gathered = gather(sources, limit, system_prompt=lambda _: prompt)
    page.rollouts = gathered.rollouts
    page.notes += gathered.notes
    if not (evaluations or page.metrics.values or page.rollouts.found):
        damaged = f" ({'; '.join(page.notes)})" if page.notes else ""
        raise InputError(f"{folder} holds a training run with no metrics, evaluations or rollouts to show{damaged}")
    return page


def _rollouts_of(evaluation: Evaluation) -> Iterator[Record | None]:
    yield from evaluation_records(RunFolder(evaluation.file.parents[1]).evaluation(evaluation.step), evaluation.step)


def _evaluations(folder: Path, notes: list[str]) -> list[Evaluation]:
    run, found = RunFolder(folder), []
    for step in run.evaluation_steps():
        try:
            values = run.evaluation(step)
        except InputError as error:
            notes.append(f"left out: {error}")
        else:
            kept = {name: value for name, value in values.items() if name != "rollouts"}
            found.append(Evaluation(step, run.evaluation_file(step), kept))
    return found


def _add_facts(page: Page, folder: Path, evaluations: list[Evaluation]) -> None:
    facts: list[tuple[str, object]] = []
    if (file := folder / "train_results.json").is_file():
        if (results := read_json(file)) is None:
            page.notes.append(f"{file.name} is damaged: left out")
            results = {}
        facts += [(name, results.get(name)) for name in ("model", "engine", "steps")]
        if (seconds := number_of(results.get("seconds"))) is not None:
            facts.append(("time", f"{seconds:,.0f} s"))
        if results:
            stopped, ended = results.get("stopped_by"), "interrupted" if results.get("interrupted") else "finished"
            facts += [("state", f"stopped by monitor {stopped}" if stopped else ended), ("error", results.get("error"))]
    elif (folder / "metrics.jsonl").is_file():
        facts.append(("state", "not finished"))
    if evaluations:
        last = evaluations[-1].values
        asked = last.get("questions")
        n = sum(whole_of(dict_of(entry).get("n")) or 0 for entry in asked) if isinstance(asked, list) else 0
        facts.append(("evaluations", f"{len(evaluations)}, on {n} frozen problems"))
        sampling = dict_of(last.get("sampling"))
        names = {"rollouts_per_example": "answers a problem", "temperature": "temperature", "max_tokens": "max. tokens"}
        told = [f"{label} {sampling[name]}" for name, label in names.items() if sampling.get(name) is not None]
        facts.append(("sampling", ", ".join(told)))
    page.facts = [(name, str(value)) for name, value in facts if value not in (None, "")]


def _add_metrics(page: Page, folder: Path) -> None:
    file, damaged = folder / "metrics.jsonl", 0
    if not file.is_file():
        return
    found: dict[str, tuple[list[float], list[float]]] = {}
    for line in json_lines(file):
        if (step := number_of(dict_of(line).get("step"))) is None:
            damaged += 1
            continue
        for name, value in dict_of(line).items():
            if name != "step" and (number := number_of(value)) is not None:
                steps, values = found.setdefault(name, ([], []))
                steps.append(step)
                values.append(number)
    if damaged:
        page.notes.append(f"{file.name}: {damaged} damaged {'line' if damaged == 1 else 'lines'} left out")
    every = max((-(-len(steps) // POINTS) for steps, _ in found.values()), default=1)
    page.metrics = Metrics(
        {name: (steps[::every], values[::every]) for name, (steps, values) in sorted(found.items())},
        f"every {every}th value" if every > 1 else "",
    )


def _add_texts(page: Page, folder: Path) -> str | None:
    """The configuration; returns the system prompt, where it is told."""
    prompt: Any = None
    for name in ("config.yaml", "arguments.yaml"):
        try:
            text = (folder / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{folder / name} cannot be read: {error.strerror}") from error
        page.texts.append(Text(name, text))
        try:
            values = yaml12.load(text)
        except (yaml.YAMLError, ValueError):
            page.notes.append(f"{name} is damaged: it is shown as it is")
            continue
        prompt = prompt or dict_of(dict_of(values).get("environment")).get("system_prompt")
    return prompt if isinstance(prompt, str) else None
