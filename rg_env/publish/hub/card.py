"""The model card: README.md of a repository, written from a run's files alone by the template card.md.jinja.

Text from files (names of tasks, options, messages) is data: it appears as code, never as markup.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from shlex import join
from statistics import fmean
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import ChainableUndefined, Environment, PackageLoader

from rg_env.core.data.manifest import split_hash
from rg_env.core.data.splits import Split
from rg_env.core.hub import PushRequest
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.core.run_folder import RunFolder
from rg_env.core.statistics import paired_difference, share_interval
from rg_env.core.text import one_line
from rg_env.errors import install_command
from rg_env.evaluation.config import TINY
from rg_env.publish.hub.files import CURVE, publishable
from rg_env.publish.hub.source import Licence, Source

Values = dict[str, Any]
Answers = dict[str, list[float]]
"""By problem, whether each answer was correct (0 or 1)."""
_PARTS = {
    "training": "Tasks that it was trained on",
    "held_out": "Tasks that it was not trained on",
    "labelled": "Other questions, under their own labels",
}
_ALL = ""
"""The name of the row over all tasks of a part."""
_KINDS = {"sampled": "accuracy", "greedy": "greedy_accuracy"}
_PEAKS = ("memory/peak_gpu_gb", "memory/peak_rss_gb")
_GRADING = {
    "hardened": "correct or not, by rg-env's own graders, which differ from Reasoning Gym's for some tasks "
    "(`rg-env tasks --audit` lists them)",
    "partial": "the reward counts real progress; accuracy is correct or not",
    "upstream": "by Reasoning Gym's own formulas, which accept some wrong answers; answers are never run as code",
}


def card(request: PushRequest, source: Source, licence: Licence, paths: Sequence[str]) -> str:
    """The text of the card. `paths`: the other files in the repository."""
    name = request.repo_id.partition("/")[2]
    evaluations = {each["step"]: each for each in source.run.evaluations()} if source.run else {}
    before, after = evaluations.get(0), evaluations.get(source.step)
    values = {
        "metadata": _metadata(name, source, licence, after),
        "name": name,
        "repo_id": request.repo_id,
        "revision": request.revision,
        "pinned": f', revision="{request.revision}"' if request.revision else "",
        "full": request.full,
        "kind": "LoRA adapters" if source.adapter else "A model",
        "step": source.step,
        "adapter": source.adapter,
        "rounded_to": source.rounded_to,
        "base": source.base,
        "licence": licence,
        "tiny": TINY,
        "curve": CURVE if CURVE in paths else None,
        "before": before,
        "after": after,
        "results": list(_results(before, after)),
        "run": source.run,
        **(_run_values(source.run, after or before) if source.run else {}),
    }
    return _ENVIRONMENT.get_template("card.md.jinja").render(values, install=install_command("train"))


def _metadata(name: str, source: Source, licence: Licence, after: Values | None) -> str:
    """What the Hub reads, `model-index` included."""
    trained = source.run is not None and source.run.arguments().get("training")
    values: dict[str, Any] = {
        "license": licence.license,
        "license_name": licence.license_name,
        "license_link": licence.license_link,
        "library_name": "peft" if source.adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["rg-env", "reasoning-gym", "reinforcement-learning", *(["grpo"] if trained else [])],
    }
    if source.base.on_hub:
        values |= {"base_model": source.base.name}
        values |= {"base_model_relation": "adapter" if source.adapter else "finetune"}
    if after and not source.rounded_to:  # otherwise they are the results of other weights
        values |= {"model_name": name, "eval_results": list(_eval_results(after))}
    return str(ModelCardData(**{key: value for key, value in values.items() if value is not None}).to_yaml())


def _eval_results(evaluation: Values) -> Iterator[EvalResult]:
    hashes = {
        (each["part"], name): each["manifest_sha256"]
        for each in evaluation["questions"]
        for name in ([each["label"]] if each["part"] == "labelled" else each["tasks"])
    }
    for part, name, scores in _scores(evaluation):
        for kind, accuracy in _KINDS.items():
            if scores.get(accuracy) is None:
                continue
            sampling = evaluation["sampling"]
            yield EvalResult(
                task_type="text-generation",
                dataset_type="reasoning-gym",
                dataset_name=f"Reasoning Gym, {one_line(name)}",
                dataset_config=one_line(name),
                dataset_split="eval",
                dataset_args={"manifest_sha256": hashes.get((part, name))},
                metric_type="accuracy",
                metric_value=scores[accuracy],
                metric_name=f"accuracy, {kind}",
                metric_args={
                    "n": scores["n"],
                    "standard_error": scores[f"{accuracy}_se"],
                    "temperature": sampling["temperature"] if kind == "sampled" else 0.0,
                    "max_tokens": sampling["max_tokens"],
                },
            )


def _scores(evaluation: Values) -> Iterator[tuple[str, str, Values]]:
    """Part, name and scores of each task, held-out task and label."""
    held_out = (evaluation["held_out"] or {}).get("tasks", {})
    for part, scores in (
        ("training", evaluation["tasks"]),
        ("held_out", held_out),
        ("labelled", evaluation["labelled"]),
    ):
        for name, each in scores.items():
            yield part, name, each


def _results(before: Values | None, after: Values | None) -> Iterator[tuple[str, list[list[str]]]]:
    """The title and the rows of each table."""
    sides = [side for side in (before, after) if side]
    if not sides:
        return
    paired = before is not None and after is not None
    head = ["accuracy", "questions", *(["before"] if before else [])]
    head += [f"after {after['step']} steps"] if after else []
    head += ["difference", "p"] if paired else []
    for part, title in _PARTS.items():
        scores = [{name: each for kind, name, each in _scores(side) if kind == part} for side in sides]
        if part == "training" and len(scores[-1]) > 1:
            scores = [{_ALL: side, **each} for side, each in zip(sides, scores, strict=True)]
        rows = []
        for name in scores[-1]:
            for kind, accuracy in _KINDS.items():
                if all(each.get(name, {}).get(accuracy) is None for each in scores):
                    continue
                answers = [_answers(side, part, name, kind) for side in sides]
                cells = [_interval(each) for each in answers]
                if paired:
                    same = sides[0]["questions"] == sides[1]["questions"]
                    cells += _difference(*answers) if same else ["other questions", ""]
                shown = code(name) if name else "all of them"
                rows.append([f"{shown}, {kind}", str(scores[-1][name]["n"]), *cells])
        if rows:
            yield title, [head, *rows]


def _answers(evaluation: Values, part: str, name: str, kind: str) -> Answers:
    found: Answers = {}
    for record in evaluation["rollouts"]:
        chosen = (record["part"], record["draw"]) == (part, kind) and name in (_ALL, record["task"])
        if chosen and record["correct"] is not None:
            found.setdefault(f"{record['task']} {record['problem']}", []).append(float(record["correct"]))
    return found


def _interval(answers: Answers) -> str:
    if not answers:
        return "not measured"
    mean, (low, high) = fmean(chain.from_iterable(answers.values())), share_interval(list(answers.values()))
    return f"{mean:.3f} \\[{low:.3f}, {high:.3f}\\]"


def _difference(before: Answers, after: Answers) -> list[str]:
    found = paired_difference([(after, before)])
    low, high = found.interval
    return [f"{found.value:+.3f} \\[{low:+.3f}, {high:+.3f}\\]", f"{found.p_value:.4f}"]


def _run_values(run: RunFolder, evaluation: Values | None) -> Values:
    """What the template shows of a run's files."""
    config, arguments = publishable(run.config()), publishable(run.arguments())
    manifest, outcome, metrics = run.manifest(), run.results(), run.metrics()
    environment = arguments.get("environment", {})
    rows = manifest.get("rows") or {}
    sources: list[tuple[str, Values, Split]] = [("training", rows, "train"), ("evaluation", rows, "eval")]
    sources = sources if rows else []
    sources += [("evaluation", each, "eval") for each in manifest.get("evaluation_rows", [])]
    grading = config.get("grading") or environment.get("grading")
    sampling = evaluation["sampling"] if evaluation else {}
    return {
        "config": config,
        "environment": environment,
        "chat": prompt if isinstance(prompt := environment.get("first_prompt"), list) else None,
        "training": arguments.get("training", {}),
        "manifest": manifest,
        "gpus": Counter(manifest.get("hardware", {}).get("gpus", [])),
        "peaks": {key: max((line[key] for line in metrics if line.get(key)), default=None) for key in _PEAKS},
        "outcome": outcome,
        "last_step": outcome["steps"] if outcome else None,
        "tasks": rows.get("tasks", []),
        "splits": [(name, each, each["splits"][split], split_hash(each, split)) for name, each, split in sources],
        "grading": grading,
        "grading_note": _GRADING.get(grading, "not recorded"),
        "sampling": sampling,
        "evaluation": evaluation,
        "asked": [f"{each['n']} of {code(name)}" for _, name, each in _scores(evaluation)] if evaluation else [],
        "eval_options": join(_eval_options(rows.get("tasks", []), config, environment, grading, sampling)),
    }


def _eval_options(
    tasks: list[Values], config: Values, environment: Values, grading: str, sampling: Values
) -> list[str]:
    """Options of `rg-env eval` for the tasks as they were trained on, with the run's prompt and sampling.

    Values are JSON, which is also YAML, so none can end its line.
    """
    options = {
        one_line(task["name"]): {key: task[key] for key in ("config", "level", "levels") if task.get(key)}
        for task in tasks
    }
    plain = not any(options.values()) or len(options) < len(tasks)  # a name that occurs twice is ambiguous
    words = ["--tasks", *options] if plain else [f"tasks={json.dumps(options)}"]
    prompt = config.get("prompt", {})
    for key, value, default in (
        ("sampling.max_tokens", sampling.get("max_tokens"), None),
        ("sampling.temperature", sampling.get("temperature"), 1.0),
        ("sampling.top_p", sampling.get("top_p"), 1.0),
        ("grading", grading, "hardened"),
        ("prompt.system_prompt", environment.get("system_prompt"), SYSTEM_PROMPT),
        ("prompt.placement", prompt.get("placement"), "system"),
        ("prompt.preamble", prompt.get("preamble"), ""),
    ):
        if value not in (None, default):
            words.append(f"{key}={json.dumps(value)}")
    return words


def code(value: object, most: int = 300) -> str:
    """Any text as code, in one line, also in a cell of a table."""
    line = one_line(value, most).replace("|", "\\|")
    if not line:
        return ""
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    space = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{space}{line}{space}{fence}"


def block(text: str, language: str) -> str:
    """Any text as lines of code, fenced by more backticks than it contains."""
    lines = ["".join(each if each.isprintable() else " " for each in line) for line in text.strip("\n").split("\n")]
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table from Markdown cells, the first row on top."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def as_text(value: object, indent: int | None = None) -> str:
    """A value of a config as JSON; text as it is; nothing for an empty value."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=indent) if value or value in (0, False) else ""


_ENVIRONMENT = Environment(
    loader=PackageLoader("rg_env.publish.hub", ""),
    undefined=ChainableUndefined,  # files of scripts' runs lack some sections
    autoescape=False,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {"code": code, "block": block, "table": table, "as_text": as_text}
