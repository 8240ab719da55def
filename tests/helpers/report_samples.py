"""Folders of runs and evaluations with the files that a report reads, and parsers for report pages."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from result_files import all_results, model_result, run_evaluation, task_results

from rg_env.core.data.splits import question_hash
from rg_env.evaluation.questions import Answer
from rg_env.evaluation.results import Paired, Results
from rg_env.evaluation.scores import scores_from

HOSTILE = (
    "<script>document.title = 'owned'</script>",
    "</script><script>document.title = 'owned'</script>",
    "<!-- <script>",
    "<img src=x onerror=\"document.title = 'owned'\">",
    "<svg/onload=alert(1)>",
    "<a href='javascript:alert(1)'>x</a><style>body{display:none}</style>",
    "]]> &lt;b&gt; &amp; \u2028\u2029 \ufeff \x00 \x1b[31m \udc80 $title ${data} %s",
    "<iframe src='http://127.0.0.1:9/'></iframe>",
)


def write_lines(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    with file.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)


def training_record(step: int, question: str = "1 + 1", **changes: Any) -> dict[str, Any]:
    """Return a line of a run's `rollouts.jsonl`."""
    record = {
        "step": step,
        "task": "chain_sum",
        "question": question,
        "answer": "2",
        "completion": "<answer>2</answer>",
    }
    return {**record, "completion_tokens": 4, "truncated": False, "reward": 1.1, "correct": True, **changes}


def evaluated(step: int, right: Sequence[Sequence[bool]]) -> Results:
    """Return an evaluation, given whether each answer to each problem is correct. Problem 0 is from a held-out task."""
    problems = []
    for number, answers in enumerate(right):
        about = {"part": "training" if number else "held_out", "task": "chain_sum" if number else "maze",
                 "question": f"What is 1 + 1, for the {number}th time?", "answer": "2", "completion_tokens": 8,
                 "truncated": False}  # fmt: skip
        records: list[dict[str, Any]] = []
        for correct in answers:
            answer, status = ("2", "correct") if correct else ("3", "wrong")
            completion = f"It is {answer}, after {step} steps. <answer>{answer}</answer>"
            reward = 1.1 if correct else 0.1
            records.append({**about, "completion": completion, "reward": reward, "correct": correct, "status": status})
        greedy = {"completion": f"greedy at {step}", "completion_tokens": 3, "reward": 0.0, "correct": False}
        records[0] |= {f"greedy_{name}": value for name, value in greedy.items()}
        problems.append(records)
    return run_evaluation(step, problems)


def write_run(folder: Path, evaluations: Sequence[Results] | None = None) -> Path:
    """Write a training run with 4 steps, evaluated before and after training."""
    if evaluations is None:
        before = evaluated(0, [[False, False], [True, False], [False, False], [False, False]])
        evaluations = [before, evaluated(4, [[True, False], [True, True], [True, False], [False, False]])]
    (folder / "eval_results").mkdir(parents=True)
    for each in evaluations:
        file = folder / "eval_results" / f"eval_step_{each.step}.json"
        file.write_text(each.model_dump_json(), encoding="utf-8")
    steps = [{"step": step, "reward": step / 4, "accuracy": step / 8, "kl": None} for step in range(1, 5)]
    write_lines(folder / "metrics.jsonl", steps)
    write_lines(folder / "rollouts.jsonl", [training_record(step, f"1 + {step}") for step in range(1, 5)])
    results = {"model": "tiny", "engine": "embedded", "steps": 4, "seconds": 12.3, "interrupted": False, "error": None}
    results["monitors"] = ["step 3: monitor length: it grows"]
    manifest = {"created": "2025-01-01T12:00:00+00:00", "commit": "0123abc"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "train_results.json").write_text(json.dumps(results))
    (folder / "config.yaml").write_text("model: tiny\nenvironment: {system_prompt: Think first.}\n")
    return folder


def evaluation_record(model: str, problem: int, rollout: int, correct: bool, **changes: Any) -> dict[str, Any]:
    """Return a line of an evaluation's `rollouts.jsonl`."""
    question = f"How many legs have {problem} cats?"
    record: dict[str, Any] = {
        "model": model,
        "task": "leg_counting",
        "row": question_hash(question),
        "problem": problem,
        "rollout": rollout,
        "question": question,
        "answer": str(4 * problem),
        "completion": f"{model} says <answer>{4 * problem if correct else 'none'}</answer>",
        "reasoning": f"{model} thinks about cat {problem}.",
        "prompt_tokens": 20,
        "completion_tokens": 10,
        "truncated": False,
        "extracted": str(4 * problem) if correct else "none",
        "score": float(correct),
        "correct": correct,
        "reward": 1.1 if correct else 0.1,
        "rewards": {"correctness": float(correct), "format": 1.0},
        "status": "correct" if correct else "wrong",
        "detail": "",
        "error": None,
        "seconds": 0.5,
    }
    return {**record, **changes}


def results_of_records(records: Sequence[Mapping[str, Any]], created: str = "2025-01-01") -> Results:
    """Return the results of one task, computed from these rollouts."""
    models = {}
    for model in dict.fromkeys(record["model"] for record in records):
        questions: dict[str, list[Answer]] = {}
        for record in records:
            if record["model"] == model:
                questions.setdefault(record["row"], []).append(Answer.of(record))
        prompt = "Answer as a cat." if model == "trained" else None
        update = {"scores": scores_from(list(questions.values())), "system_prompt": prompt}
        models[model] = model_result().model_copy(update=update)
    pair = Paired(a="trained", b="base", n=4, difference=0.5, interval=(0.1, 0.9), p_value=0.03)
    task = task_results(models, "leg_counting", n=4, rollouts_per_example=2, comparisons=[pair])
    return all_results([task], created=created, comparisons=[pair])


def evaluation_records() -> list[dict[str, Any]]:
    """Return rollouts of two models on four questions, with two answers to each question."""
    right = {"base": [(0, 0), (1, 0), (0, 0), (1, 1)], "trained": [(1, 1), (1, 0), (1, 1), (0, 1)]}
    return [
        evaluation_record(model, problem, rollout, bool(each))
        for model, problems in right.items()
        for problem, answers in enumerate(problems)
        for rollout, each in enumerate(answers)
    ]


def write_evaluation(folder: Path, records: Sequence[Mapping[str, Any]] | None = None) -> Path:
    """Write the results of all tasks, the results of the single task, and the rollouts."""
    records = evaluation_records() if records is None else records
    folder.mkdir(parents=True, exist_ok=True)
    results = results_of_records(records)
    single = results.of_task("leg_counting")
    (folder / "results_leg_counting_20250101-000000.json").write_text(single.model_dump_json())
    (folder / "results_all_tasks_20250101-000000.json").write_text(results.model_dump_json())
    write_lines(folder / "rollouts.jsonl", records)
    return folder


class Reader(HTMLParser):
    """Parser that collects a page's scripts, styles, security policy, and attributes that could execute code."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: dict[str, list[str]] = {"script": [], "style": [], "data": [], "title": []}
        self.policy = ""
        self.attributes: list[tuple[str, str | None]] = []
        self._within = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.attributes += attrs
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given.get("content") or ""
        kind = "data" if given.get("type") == "application/json" else tag
        if kind in self.found:
            self._within = kind
            self.found[kind].append("")

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within:
            self.found[self._within][-1] += data

    @property
    def data(self) -> Any:
        (text,) = self.found["data"]
        return json.loads(text)


def table(data: Any, title: str) -> list[dict[str, str]]:
    """Return a table's rows by column."""
    (found,) = [each for each in data["tables"] if each["title"] == title]
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


def page_data(file: Path) -> Any:
    """Return the JSON in a page."""
    return Reader(file.read_text(encoding="utf-8")).data
