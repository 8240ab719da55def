"""Report on a training run, from the files in its folder (see `RunFolder`)."""

from collections.abc import Sequence
from pathlib import Path

from rg_env.core.run_folder import RunFolder
from rg_env.core.text import counted, is_number
from rg_env.errors import InputError
from rg_env.evaluation.report.page import Chart, Estimate, Metrics, Page, Series, Text, date
from rg_env.evaluation.report.results import accuracy_of, add_tasks
from rg_env.evaluation.report.rollouts import file_source, gather, step_source
from rg_env.evaluation.results import Results, read_evaluations
from rg_env.evaluation.scores import together
from rg_env.evaluation.tables import Table, columns_of, figures_of

POINTS = 1_000
"""Maximum number of values per metric in a report; if there are more, evenly spaced ones are kept."""
_LABELS_DRAWN = 5
_CHARTS = {
    "Training batches": {"reward": "reward", "accuracy": "accuracy"},
    "Completion length, tokens": {"completions/mean_length": "mean", "completions/max_length": "longest"},
}
"""Metrics and their labels by title of the chart; the second metric is dotted."""
_PARTS = {"held_out": "held out", "labelled": "label"}


def run_page(folder: Path, limit: int) -> Page:
    """Make the report on the run in `folder`, with at most `limit` rollouts.

    Raises:
        InputError: a file is damaged or unreadable, or there is nothing to show.
    """
    run, page = RunFolder(folder), Page(folder.resolve().name, "training run")
    evaluations = read_evaluations(run)
    _add_facts(page, run, evaluations)
    _add_metrics(page, run)
    _add_charts(page, evaluations)
    if evaluations:
        page.title = evaluations[-1].title
        _add_tables(page, evaluations)
    files = [file for file in (run.config_file, run.arguments_file) if file.is_file()]
    page.texts = [Text(file.name, file.read_text(encoding="utf-8")) for file in files]
    settings = run.arguments() if files else {}
    prompt = (settings.get("environment") or {}).get("system_prompt")
    sources = [step_source(each.rollouts, each.step or 0) for each in evaluations]
    if run.rollouts_file.is_file():
        sources.append(file_source(run.rollouts_file, "training"))
    gathered = gather(sources, limit, system_prompt=lambda _: prompt)
    page.rollouts = gathered.rollouts
    page.notes += gathered.notes
    if not (evaluations or page.metrics.values or page.rollouts.found):
        raise InputError(f"{folder} has a training run without metrics, evaluations or rollouts")
    return page


def _add_facts(page: Page, run: RunFolder, evaluations: Sequence[Results]) -> None:
    manifest, results = run.manifest(), run.results()
    facts: list[tuple[str, object]] = [("folder", page.title), ("date", date(manifest.get("created")))]
    facts.append(("commit", (manifest.get("commit") or "")[:12]))
    if results is not None:
        state = "interrupted" if results.get("interrupted") else "finished"
        if rule := results.get("stopped_by"):
            state = f"stopped by monitor {rule}"
        facts += [(name, results.get(name)) for name in ("model", "engine", "steps")]
        facts += [("time", f"{results['seconds']:,.0f} s"), ("state", state), ("error", results.get("error"))]
        if findings := results.get("monitors"):
            page.tables.append(Table("Monitor findings", ["finding"], [[line] for line in findings]))
    elif run.metrics_file.is_file():
        facts.append(("state", "not finished"))
    if evaluations:
        last = evaluations[-1]
        sampling = last.sampling
        facts.append(
            ("evaluations", f"{len(evaluations)}, on {sum(each.n for each in last.environments)} frozen problems")
        )
        answers = counted(sampling.rollouts_per_example, "answer")
        text = f"{answers} a problem, temperature {sampling.temperature:g}, at most {sampling.max_tokens} tokens"
        facts.append(("sampling", text))
    page.facts = [(name, str(value)) for name, value in facts if value not in (None, "")]


def _add_metrics(page: Page, run: RunFolder) -> None:
    found: dict[str, tuple[list[float], list[float]]] = {}
    for record in run.metrics():
        for name, value in record.items():
            if name != "step" and is_number(value):
                steps, values = found.setdefault(name, ([], []))
                steps.append(record["step"])
                values.append(value)
    every = max((-(-len(steps) // POINTS) for steps, _ in found.values()), default=1)
    page.metrics = Metrics(
        {name: (steps[::every], values[::every]) for name, (steps, values) in sorted(found.items())},
        f"1 of {every} values" if every > 1 else "",
    )


def _add_charts(page: Page, evaluations: Sequence[Results]) -> None:
    """Add charts of accuracy on the frozen problems, and of reward and length in training."""
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for each in evaluations:
        found = {
            "sampled": accuracy_of(each.overall()),
            "greedy": accuracy_of(each.overall(), "greedy_accuracy"),
            "held-out tasks": accuracy_of(each.overall("held_out")),
        }
        labels = list(each.scores("labelled").items())[:_LABELS_DRAWN]
        found |= {f"{name} (label)": accuracy_of(scores) for name, scores in labels}
        for name, estimate in found.items():
            if estimate:
                lines.setdefault(name, []).append((each.step or 0, estimate))
    if lines:
        drawn = [Series(name, points, name not in ("sampled", "greedy")) for name, points in lines.items()]
        note = "Mean and 95% interval, clustered by problem"
        page.charts.append(Chart("Accuracy on the frozen problems", drawn, note, share=True))
    for title, names in _CHARTS.items():
        drawn = [
            Series(label, [(x, Estimate(y)) for x, y in zip(*page.metrics.values[name], strict=True)], number > 0)
            for number, (name, label) in enumerate(names.items())
            if name in page.metrics.values
        ]
        if drawn:
            page.charts.append(Chart(title, drawn, page.metrics.note))


def _add_tables(page: Page, evaluations: Sequence[Results]) -> None:
    """Add all evaluations, and the tasks in the first and the last one, compared if they have the same questions."""
    rows = []
    for each in evaluations:
        if overall := each.overall():
            held_out = each.overall("held_out")
            apart = {"held-out accuracy": figures_of(held_out)["accuracy"]} if held_out else {}
            rows.append({"step": str(each.step), **figures_of(overall), **apart})
    if rows:
        note = "Means over the training tasks' problems, with 95% intervals clustered by problem."
        page.tables.append(Table("Evaluations", *columns_of(rows), [note]))
    first, last = evaluations[0], evaluations[-1]
    shown = {f"step {last.step}": last}
    if first.step != last.step and first.environments == last.environments:
        shown = {f"step {first.step}": first, **shown}
    elif first.step != last.step:
        page.notes.append("the first and the last evaluation are not compared: their questions differ")
    results = together(shown)
    kinds = {name: _PARTS.get(task.part or "") for name, task in results.tasks.items()}
    add_tasks(page, results, {name: f"{name} ({kind})" for name, kind in kinds.items() if kind}, "step")
