"""The model card (README.md of a repository), rendered from a run's files with the template card.md.jinja.

Text from files (task names, options, messages) is rendered as code, never as markup.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from jinja2 import ChainableUndefined, Environment, PackageLoader

from rg_env.core.data.manifest import split_hash
from rg_env.core.data.splits import Split
from rg_env.core.run_folder import RunFolder
from rg_env.core.statistics import with_interval
from rg_env.core.text import counted, one_line
from rg_env.errors import repository_command
from rg_env.evaluation.results import Accuracy, Paired, Results, read_results
from rg_env.evaluation.scores import together
from rg_env.publish.checkpoint import Base, Checkpoint
from rg_env.publish.contents import CURVE, publishable
from rg_env.tiny import TINY

if TYPE_CHECKING:
    from rg_env.publish.push import PushRequest

_KINDS = {"accuracy": "sampled", "greedy_accuracy": "greedy"}
_LICENSE = ("license", "license_name", "license_link")


def find_license(base: Base, api: HfApi | None = None) -> dict[str, str | None]:
    """Find the license stated in the base model's card. Without `api`, the license of a model on the Hub counts
    as unknown.

    Returns:
        The license's metadata (`license`, `license_name`, `license_link`), and `stated_by`, which names the source.
        Empty if the license is unknown.
    """
    if base.name == TINY:
        return {"license": "apache-2.0", "stated_by": "the rg_env package"}
    try:
        if base.folder is not None:
            stated_by, data = "the base model's own card", ModelCard.load(base.folder / "README.md").data
        elif api is not None and base.name is not None:
            stated_by, data = "the base model's card on the Hub", api.model_info(base.name, timeout=10).card_data
        else:
            return {}
    except Exception:  # the card reports the license as unknown after any error
        return {}
    if data is None or not isinstance(data.get("license"), str):
        return {}
    return {"stated_by": stated_by, **{key: data.get(key) for key in _LICENSE}}


def card(request: "PushRequest", checkpoint: Checkpoint, license: dict[str, Any], paths: Sequence[str]) -> str:
    """Render the card. `paths` are the paths of the other files in the repository."""
    run = checkpoint.run
    assert run is not None
    config, arguments, manifest = publishable(run.config()), publishable(run.arguments()), run.manifest()
    rows = manifest.get("rows") or {}
    own = _own_data(config)
    before, after = (_evaluation(run, step, own) for step in (0, checkpoint.step))
    if before and after and before.environments != after.environments:
        before = None  # the run was resumed with different questions
    columns = {
        f"after {counted(each.step, 'step')}" if each.step else "before": each for each in (before, after) if each
    }
    shown = together(columns) if columns else None
    sources: list[tuple[str, dict[str, Any], Split]] = (
        [("training", rows, "train"), ("evaluation", rows, "eval")] if rows else []
    )
    sources += [("evaluation", each, "eval") for each in manifest.get("evaluation_rows", [])]
    return _TEMPLATE.render(
        request=request,
        checkpoint=checkpoint,
        license=license,
        metadata=_metadata(request, checkpoint, license, after, own),
        tiny=TINY,
        install=repository_command("train"),
        curve=CURVE if CURVE in paths else None,
        before=before,
        after=after,
        shown=shown,
        results=list(_tables(shown)) if shown else [],
        run=run,
        own_data=own,
        copies=list(_copies(config, paths)),
        config=config,
        arguments=arguments,
        manifest=manifest,
        gpus=Counter(manifest.get("hardware", {}).get("gpus", [])),
        splits=[(kind, each, each["splits"][split], split_hash(each, split)) for kind, each, split in sources],
    )


def _own_data(config: dict[str, Any]) -> str | None:
    """Describe the user's own data that a run used for training: the name of a file or dataset, or the number of rows.
    Returns None for Reasoning Gym tasks."""
    data, environment = config.get("data"), config.get("environment") or {}
    if isinstance(data, dict):
        return str(data.get("name") or data["path"])
    if "own_rows" not in environment:
        return None
    # `data` is the --data option of the script, if it was given.
    return data if isinstance(data, str) and data else counted(environment["own_rows"], "own row")


def _copies(config: dict[str, Any], paths: Sequence[str]) -> Iterator[str]:
    """Describe each published file that contains questions from the user's own data."""
    count = (config.get("splits") or {}).get("num_eval_examples")
    if count != 0 and any(path.startswith("run/eval_results/") for path in paths):
        number = f"{count} " if count else ""
        yield f"`run/eval_results` contains the {number}questions used only for evaluation, with answers"
    if "run/rollouts.jsonl" in paths:
        yield "`run/rollouts.jsonl` contains questions from training"


def public_notes(request: "PushRequest", checkpoint: Checkpoint, paths: Sequence[str]) -> list[str]:
    """Return a warning if a push to a public repository would publish questions from the user's own data."""
    assert checkpoint.run is not None
    config = checkpoint.run.config()
    own, copies = _own_data(config), list(_copies(config, paths))
    if request.private or not own or not copies:
        return []
    remedy = "add --private to keep them private (a new repository is public by default)"
    return [f"WARNING: questions from your own data ({own}) would be public: {', and '.join(copies)}; {remedy}"]


def _evaluation(run: RunFolder, step: int | None, own_data: str | None) -> Results | None:
    """Read the evaluation after a step, if any. For a run on the user's own data, the training task is renamed to
    `own_data`."""
    if step not in run.evaluation_steps():
        return None
    results = read_results(run.evaluation_file(step))
    tasks = {own_data if own_data and task.part == "training" else name: task for name, task in results.tasks.items()}
    return results.model_copy(update={"tasks": tasks})


def _metadata(
    request: "PushRequest", checkpoint: Checkpoint, license: dict[str, Any], after: Results | None, own_data: str | None
) -> str:
    """Render the card's YAML metadata, including `model-index`."""
    base, is_adapter = checkpoint.base, bool(checkpoint.adapter)
    # Omit the results if the weights were rounded after the run evaluated them.
    measured = after if after and not checkpoint.rounded_to else None
    tags = ["rg-env", *([] if own_data else ["reasoning-gym"]), "reinforcement-learning", "grpo"]
    data = ModelCardData(
        **{key: license.get(key) for key in _LICENSE},
        library_name="peft" if is_adapter else "transformers",
        pipeline_tag="text-generation",
        tags=tags,
        base_model=base.name if base.on_hub else None,
        base_model_relation=("adapter" if is_adapter else "finetune") if base.on_hub else None,
        model_name=request.repo_id.partition("/")[2] if measured else None,
        eval_results=list(_eval_results(measured, own_data)) if measured else None,
    )
    return str(data.to_yaml())


def _eval_results(evaluation: Results, own_data: str | None) -> Iterator[EvalResult]:
    for name, task in evaluation.tasks.items():
        scores, title, is_own = task.scores, one_line(name), name == own_data
        for figure, kind in _KINDS.items():
            if figure not in scores.intervals:
                continue
            yield EvalResult(
                task_type="text-generation",
                dataset_type=title if is_own else "reasoning-gym",
                dataset_name=title if is_own else f"Reasoning Gym, {title}",
                dataset_config=None if is_own else title,
                dataset_split="eval",
                metric_type="accuracy",
                metric_value=round(getattr(scores, figure), 4),
                metric_name=f"accuracy, {kind}",
            )


def _tables(shown: Results) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield, for each table, the name of the evaluation part and the table's rows. Each model in `shown` has a
    column."""
    heads = ["accuracy", "questions", *shown.models, *(["difference", "p"] if len(shown.models) > 1 else [])]
    for part in ("training", "held_out", "labelled"):
        tasks = {code(name): task for name, task in shown.tasks.items() if task.part == part}
        rows: list[list[str]] = []
        if part == "training" and len(tasks) > 1:
            n = sum(task.scores.n for task in tasks.values())
            rows += _row("mean of the tasks", n, list(shown.models.values()), "accuracy", shown.comparisons)
        for name, task in tasks.items():
            scores = [model.scores for model in task.models.values()]
            rows += _row(name, task.scores.n, scores, "accuracy", task.comparisons)
            rows += _row(name, task.scores.n, scores, "greedy_accuracy")
        if rows:
            yield part, [heads, *rows]


def _row(
    name: str, n: int, models: Sequence[Accuracy], figure: str, compared: Sequence[Paired] = ()
) -> Iterator[list[str]]:
    """Yield one row, or nothing if the figure was not measured."""
    if any(figure in each.intervals for each in models):
        cells = [
            with_interval(getattr(each, figure), each.intervals[figure]) if figure in each.intervals else "not measured"
            for each in models
        ]
        for found in compared:
            cells += [with_interval(found.difference, found.interval, sign=True), f"{found.p_value:.4f}"]
        yield [f"{name}, {_KINDS[figure]}", str(n), *(cell.replace("[", "\\[").replace("]", "\\]") for cell in cells)]


def code(value: object, most: int = 300) -> str:
    """Format any text as inline code that also works in table cells."""
    line = one_line(value, most).replace("|", "\\|")
    if not line:
        return ""
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"


def block(text: str, language: str) -> str:
    """Format any text as a code block with a fence longer than any run of backticks in the text."""
    lines = ["".join(each if each.isprintable() else " " for each in line) for line in text.strip("\n").split("\n")]
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def shell(value: object) -> str:
    """Quote any text as a shell word."""
    return quote(one_line(value))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of Markdown cells as a table. The first row is the header."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def as_text(value: object, indent: int | None = None) -> str:
    """Format a config value as JSON. Strings are returned unchanged, and empty values become ''."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=indent) if value or value in (0, False) else ""


_ENVIRONMENT = Environment(
    loader=PackageLoader("rg_env.publish", ""),
    undefined=ChainableUndefined,  # configs recorded by training scripts lack some sections
    autoescape=False,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {"code": code, "block": block, "table": table, "as_text": as_text, "shell": shell}
_TEMPLATE = _ENVIRONMENT.get_template("card.md.jinja")
