"""Readers for files of existing replies, one `GivenReply` for each reply.

    for given in read_replies(Path("replies.jsonl")): ...

The following are read as they are:

- rows (JSON Lines, JSON, CSV, TSV, Parquet) with the columns in `_COLUMNS`
- results of reasoning-gym-eval, and of the library's own evaluation script (JSON)
- results of `vf-eval` (results.jsonl, with metadata.json next to it)
- logs of Inspect (.eval, or .json)
- samples that lm-evaluation-harness logs (samples_*.jsonl)

For a folder, all of these files in it are read. Files are read row by row, except for JSON, CSV and TSV files.
"""

import csv
import importlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rg_env.core.files import links_out, regular
from rg_env.core.grading.extraction import completion_text, is_completion
from rg_env.core.run_folder import RunFolder
from rg_env.core.tasks.task_table import load_table
from rg_env.core.text import json_problem, reason_of, shortened
from rg_env.errors import InputError, MissingExtraError, how_to_install, unknown_name

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".eval")
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "task": ("task", "rg_task", "task_name", "dataset"),
    "question": ("question",),
    "answer": ("answer", "expected_answer", "gold", "target"),
    "reply": ("reply", "completion", "response", "output", "messages", "full_model_response"),
    "model": ("model", "model_name"),
    "entry": ("entry",),
    "config": ("config",),
    "seed": ("seed",),
    "index": ("index",),
    "size": ("size",),
}
"""Columns that are read, each with its possible names in order of preference."""
_MOST_BYTES = 2**28
"""Maximum size of a sample or header in an .eval file."""
_STAMP = re.compile(r"[_-]\d{8}[_-]\d{6}$")


@dataclass(frozen=True)
class GivenReply:
    """A reply to a question of a Reasoning Gym task."""

    where: str
    """File and row, for error messages."""
    model: str
    task: str
    text: str
    question: str | None = None
    """The question, unless `index` or `entry` is given."""
    index: int | None = None
    """Index of the question's entry in the library's dataset."""
    entry: Mapping[str, Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """The task's options, and the library's `seed` and `size` if they are known."""
    answer: str | None = None
    """The gold answer, if the file contains it."""
    published: float | None = None
    """The score in the file, if any."""


def read_replies(path: Path, task: str | None = None) -> Iterator[GivenReply]:
    """Yield the replies in a file or folder, or the rollouts of a training run. `task` is the task of rows that do not
    name one.

    Raises `InputError` if a file cannot be read or a row lacks a necessary column.
    """
    if RunFolder.is_run(path) and (run := RunFolder(path)).rollouts_file.is_file():
        files = [run.rollouts_file]
    elif path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES and each.name != "metadata.json")
        if link := next((each for each in files if links_out(each, path)), None):
            raise InputError(f"{link} is a link out of {path}, which is not followed: replace it with a copy")
        files = [each for each in files if each.is_file()]
        if not files:
            raise InputError(f"{path} contains no file of replies ({', '.join(SUFFIXES)})")
    elif path.suffix not in SUFFIXES:
        raise InputError(f"{path} must be a folder or a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file")
    else:
        files = [path]
    for file in files:
        try:
            yield from _of_file(regular(file), task)
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
        except (UnicodeDecodeError, csv.Error, zipfile.BadZipFile) as error:
            raise InputError(f"{file} cannot be read: {reason_of(error)}") from error
        except (KeyError, AttributeError, TypeError) as error:  # a value is missing or of another type
            raise InputError(
                f"{file} has not the structure of any known format: use rows with the columns task, question and reply"
            ) from error


def _of_file(file: Path, task: str | None) -> Iterator[GivenReply]:
    if file.suffix == ".eval":
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            if any(each.file_size > _MOST_BYTES for each in archive.infolist()):
                raise InputError(f"{file} has a part of more than {_MOST_BYTES / 2**20:g} MB after decompression")
            header = (
                _json(archive.read("header.json").decode(), f"{file}: header.json") if "header.json" in names else {}
            )
            samples = (
                _json(archive.read(each).decode(), f"{file}: {each}") for each in names if each.startswith("samples/")
            )
            yield from _of_inspect({**header, "samples": samples}, file, task)
        return
    if file.suffix == ".json":
        content = _json(file.read_text(encoding="utf-8-sig"), str(file))
        if isinstance(content, Mapping) and "samples" in content and "eval" in content:
            yield from _of_inspect(content, file, task)
            return
        if isinstance(content, Mapping) and ("categories" in content or "results" in content):
            yield from _of_library(content, file)
            return
        if isinstance(content, Mapping):
            return  # a summary, such as one of an evaluation in several files
        rows: Iterator[tuple[int, Any]] = enumerate(content, 1)
    elif file.suffix == ".jsonl":
        rows = _lines(file)
    elif file.suffix in (".csv", ".tsv"):
        csv.field_size_limit(2**31 - 1)
        lines = file.read_text(encoding="utf-8-sig").splitlines(keepends=True)
        rows = enumerate(csv.DictReader(lines, delimiter="\t" if file.suffix == ".tsv" else ","), 2)
    else:
        try:
            parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise MissingExtraError(f"{file} needs pyarrow: {how_to_install('eval')}") from None
        try:
            batches = parquet.ParquetFile(file).iter_batches(256)
        except ValueError as error:  # pyarrow's errors are ValueErrors
            raise InputError(f"{file} cannot be read: {reason_of(error)}") from error
        rows = enumerate((row for batch in batches for row in batch.to_pylist()), 1)
    defaults = {"model": _model_of(file), "task": task}
    for number, row in rows:
        where = f"{file}:{number}"
        if not isinstance(row, Mapping):
            raise InputError(f"{where} must be a mapping of columns, not {type(row).__name__}")
        yield from _of_row(row, defaults, where)


def _lines(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, _json(line, f"{file}:{number}")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} {json_problem(error)}") from error


def _model_of(file: Path) -> str:
    """Return the model named by metadata.json (`vf-eval`) or by the folder that contains lm-eval's samples, or the name
    of the file."""
    metadata = file.with_name("metadata.json")
    found = _json(metadata.read_text(encoding="utf-8"), str(metadata)) if metadata.is_file() else None
    if isinstance(found, Mapping) and isinstance(model := found.get("model"), str):
        return model
    return file.parent.name if file.name.startswith("samples_") and file.parent.name else file.stem


# Rows


def _of_row(row: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> Iterator[GivenReply]:
    """Yield the replies in a row. Samples of lm-eval contain the replies in `resps`."""
    found = _flat(row)
    values = {
        name: next((found[each] for each in names if found.get(each) is not None), None)
        for name, names in _COLUMNS.items()
    }
    if isinstance(found.get("rg_task"), str):  # Verifiers' `task` is another name
        values["task"] = found["rg_task"]
    entry, config = _parsed(values["entry"]), _parsed(values["config"]) or {}
    if isinstance(entry, Mapping) and values["task"] is None and isinstance(entry.get("metadata"), Mapping):
        values["task"] = entry["metadata"].get("source_dataset")
    task = str(values["task"] or defaults["task"] or "")
    if not task:
        raise InputError(
            f"{where} names no task: add a column `task`, or pass --task "
            "(for your own questions, use rg_env.Environment)"
        )
    if task not in load_table():
        raise InputError(f"{where}: {unknown_name('task', task, load_table())}")
    if not isinstance(config, Mapping):
        raise InputError(f"{where}: config must be a mapping of options")
    for name in ("seed", "size"):
        if values[name] not in (None, ""):
            config = {**config, name: _whole(values[name], f"{where}: {name}")}
    index = None if values["index"] in (None, "") else _whole(values["index"], f"{where}: index")
    if "resps" in row and isinstance(row["resps"], list):
        texts = [text for each in row["resps"] for text in (each if isinstance(each, list) else [each])]
    elif values["reply"] is None:
        raise InputError(f"{where} has no reply: it needs one of the columns {', '.join(_COLUMNS['reply'])}")
    else:
        texts = [_parsed(values["reply"], only="[{")]
        parts = texts[0] if isinstance(texts[0], list) else texts
        are_messages = any(isinstance(each, Mapping) and "role" in each for each in parts)
        if isinstance(values["reply"], str) and not is_completion(texts[0]) and not are_messages:
            texts = [values["reply"]]  # a text that happens to be JSON
    for text in texts:
        if not is_completion(text):
            raise InputError(
                f"{where}: a reply must be text, or messages with one of the assistant (of an API's response, "
                f"choices[0].message), not {shortened(text)}"
            )
    question = values["question"] if isinstance(values["question"], str) else None
    if not isinstance(entry, Mapping) and question is None and (index is None or "seed" not in config):
        raise InputError(f"{where} needs a question, or an entry, or the library's seed and index")
    for text in texts:
        yield GivenReply(
            where=where,
            model=str(values["model"] or defaults["model"]),
            task=task,
            text=completion_text(text),
            question=question,
            index=index,
            entry=entry if isinstance(entry, Mapping) else None,
            config=config,
            answer=values["answer"] if isinstance(values["answer"], str) else None,
        )


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's columns, including those within `doc` (lm-eval), `metadata` (Inspect) and `info` (Verifiers). The
    library's own metadata completes the row to an entry."""
    found: dict[str, Any] = {}
    for name in ("doc", "metadata", "info"):
        inner = _parsed(row.get(name))
        if isinstance(inner, Mapping):
            if isinstance(inner.get("source_dataset"), str):
                entry = {"question": row.get("question"), "answer": row.get("answer"), "metadata": inner}
                found |= {"rg_task": inner["source_dataset"], "entry": entry}
            else:
                found |= _flat(inner)
    if isinstance(row.get("prompt"), list):
        asked = [
            each.get("content") for each in row["prompt"] if isinstance(each, Mapping) and each.get("role") == "user"
        ]
        found |= {"question": asked[-1]} if asked else {}
    return found | {name: value for name, value in row.items() if value is not None}


def _parsed(value: Any, only: str = "{") -> Any:
    """Parse JSON in a column, if that is what the text is."""
    if isinstance(value, str) and value.lstrip()[:1] in tuple(only):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _whole(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise InputError(f"{where} must be a whole number, not {value!r}") from None


# Other formats


def _of_library(content: Mapping[str, Any], file: Path) -> Iterator[GivenReply]:
    """Yield the replies in results of reasoning-gym-eval: one task per file, or all tasks under `categories`."""
    if isinstance(content.get("categories"), list):
        tasks = [each for category in content["categories"] for each in category.get("datasets", [])]
    else:
        tasks = [content]
    folder = file.parent.parent if file.parent.name == content.get("category") else file.parent
    model = str(content.get("model") or _STAMP.sub("", folder.name) or file.stem)
    for task in tasks:
        name = str(task.get("name", ""))
        if name not in load_table():
            raise InputError(f"{file}: {unknown_name('task', name, load_table())}")
        for number, result in enumerate(task.get("results") or (), 1):
            where = f"{file}: {name} question {number}"
            replies = result.get("completions") or [
                {"full_model_response": result.get("full_model_response", result.get("best_full_model_response")),
                 "score": result.get("score", result.get("best_score"))}
            ]  # fmt: skip
            for reply in replies:
                yield GivenReply(
                    where=where,
                    model=model,
                    task=name,
                    text=completion_text(reply.get("full_model_response")),
                    question=str(result["question"]),
                    config=task.get("config") or {},
                    answer=None if result.get("expected_answer") is None else str(result["expected_answer"]),
                    published=reply.get("score"),
                )


def _of_inspect(content: Mapping[str, Any], file: Path, task: str | None) -> Iterator[GivenReply]:
    described = content.get("eval") or {}
    defaults = {"model": str(described.get("model") or file.stem), "task": task}
    named = str(described.get("task", "")).rpartition("/")[2]
    if not task and named in load_table():
        defaults["task"] = named
    for sample in content["samples"]:
        choices = (sample.get("output") or {}).get("choices") or [{}]
        question = sample.get("input")
        if not isinstance(question, str):
            question = next(
                (each.get("content") for each in reversed(question or []) if each.get("role") == "user"), None
            )
        row = {"question": question, "answer": sample.get("target"), "metadata": sample.get("metadata")}
        for choice in choices:
            message = choice.get("message") or {
                "role": "assistant",
                "content": (sample.get("output") or {}).get("completion"),
            }
            yield from _of_row({**row, "reply": [message]}, defaults, f"{file}: sample {sample.get('id')}")
