"""The user's own questions and answers, from a file, the Hugging Face Hub or a list.

    data = load_rows("problems.jsonl")
    data = load_rows("openai/gsm8k", "main", answer_after="####")
    train, evaluation = split_rows(data, num_eval=200, seed=0)
    DataConfig(path="problems.jsonl").rows()             # the same as `data: problems.jsonl` in a config

This module parses text files itself, which avoids heavy imports and allows errors to be reported with line numbers.
pyarrow reads Parquet files, and `datasets` reads datasets on the Hub.
"""

import codecs
import csv
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal

from rg_env.core.config.files import OTHER_NAMES
from rg_env.core.config.parsing import Section, Text
from rg_env.core.files import regular
from rg_env.core.grading.graders.forms import same_value
from rg_env.core.hub import hub_answers
from rg_env.core.processes import print_once
from rg_env.core.tasks.task_table import load_table
from rg_env.core.text import counted, file_part, json_problem, reason_of, shortened, similar_file
from rg_env.errors import InputError

FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
"""Suffixes of data files. Any other name is a dataset on the Hub, unless a file has that name."""
OWN_TASK = "own_task"
"""Key in a row's `info` for the data's name."""
_TAKEN = ("all_tasks", "held_out", "status")
"""Names that already have a meaning in results."""
_RELATIVE = "relative paths are resolved from the working directory"
_DEFECTS_SHOWN = 10
_VALUE = re.compile(r"(?:, not |: (?=['\"])|column (?=\d)).*", re.DOTALL)
"""The end of a message about a defect, which quotes the row's value or gives its column."""
_Located = tuple[str, Any]
"""A row and its location ("line 3" in CSV and JSON Lines files, otherwise "row 3"). If a row cannot be parsed, an
`InputError` takes its place."""


class DataConfig(Section):
    """`data: FILE` is short for `data: {path: FILE}`. An answer is correct if it equals the row's answer as a number or
    as text."""

    short = "path"
    renamed: ClassVar = OTHER_NAMES["data"]

    path: Text
    """Path of a .csv, .tsv, .json, .jsonl or .parquet file, or a dataset name on the Hugging Face Hub."""
    name: Text | None = None
    """Name of the data in results and on model cards. Default: the name of the file or dataset."""
    config: Text | None = None
    """Configuration of a dataset on the Hub, such as "main". Ignored for files."""
    split: Text = "train"
    """Split of a dataset on the Hub. Ignored for files."""
    question_column: Text = "question"
    """Name of the column with the questions: text, or chats that consist of one user message."""
    answer_column: Text = "answer"
    """Name of the column with the gold answers (text or numbers). In a column of mappings, a key follows a period:
    `reward_model.ground_truth`."""
    answer_after: Text | None = None
    """Marker in the answer column, such as "####". The gold answer is the text after the last marker. Default: the
    entire text is the answer."""
    too_long: Literal["drop", "error"] = "error"
    """What happens in training if prompts are longer than `training.max_prompt_length`: "drop" omits their rows and
    prints how many, and "error" ends the run before it starts."""

    @property
    def task_name(self) -> str:
        """Name of the data in results, used like a task name: `name`, or the name of the file or dataset, followed by
        `_data` if that name already has another meaning."""
        stem = file_part(self.name or Path(self.path).stem or "data")
        return f"{stem}_data" if stem in load_table() or stem in _TAKEN else stem

    @property
    def is_file(self) -> bool:
        """Whether the data is a local file (existing or not), rather than a dataset on the Hub."""
        return os.path.exists(self.path) or self.path.lower().endswith(FILES)

    def check_exists(self) -> None:
        """Raise `InputError` if the file is missing. Datasets on the Hub are not checked."""
        file = Path(self.path).expanduser()
        if self.is_file and not file.exists():
            raise InputError(f"is not an existing file; {similar_file(file) or _RELATIVE}")

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, with the data's name in the `info` of each row. An unchanged file is read only once. Raises
        the same errors as `load_rows`."""
        file = Path(self.path).expanduser()
        found = _rows_of(self, file.stat().st_mtime_ns if file.is_file() else 0)
        return [{**row, "info": {OWN_TASK: self.task_name}} for row in found]

    def place(self, question: str) -> str:
        """Return where the data has the question: "line 3 of problems.csv", or the data's name if it is on the Hub."""
        located = _read(self.path, self.config, self.split) if self.is_file else ()
        found = (
            place for place, row in located if own_question(_value(row, self.question_column, place), place) == question
        )
        return f"{next(found, 'a row')} of {self.path}"


@lru_cache(maxsize=4)
def _rows_of(data: DataConfig, modified: int) -> list[dict[str, str]]:
    return load_rows(data.path, **data.model_dump(exclude={"path", "name", "too_long"}))


def load_rows(
    source: str | Sequence[Mapping[str, Any]],
    config: str | None = None,
    *,
    split: str = "train",
    question_column: str = "question",
    answer_column: str = "answer",
    answer_after: str | None = None,
) -> list[dict[str, str]]:
    """Load rows, with each question and answer as text.

    Each question is kept only once, so that it cannot be in both splits. The number of repeated questions is printed.

    Args:
        source: a .csv, .tsv, .json, .jsonl or .parquet file, a dataset name on the Hub, or rows. Answers may be
            numbers.
        question_column: name of the column with the questions.
        answer_column: name of the column with the gold answers.
        config: configuration of a dataset on the Hub.
        split: split of a dataset on the Hub.
        answer_after: marker in the answer column. The answer is the text after the last marker.

    Raises:
        InputError: the source cannot be read, a question or an answer is missing or unusable, or a question has two
            different answers. The error message names the line or row, counted from 1. If there are several defects,
            the message lists the first ten, one per line.
    """
    name = shortened(source).strip("'\"") if isinstance(source, str) else "the rows"
    read = _read(source, config, split) if isinstance(source, str) else _numbered(source)

    def checked(row: Any, where: str) -> dict[str, str]:
        if not isinstance(row, Mapping):
            raise InputError(f"{where} must be a mapping of columns, not {shortened(row)}")
        question = own_question(_value(row, question_column, where), f"{where}: {question_column}")
        answer = own_text(_value(row, answer_column, where), f"{where}: {answer_column}", numbers=True)
        if answer_after:
            before, marker, answer = answer.rpartition(answer_after)
            if not answer.strip() or not marker:
                shown = shortened(before or answer)
                raise InputError(f"{where}: {answer_column} has no text after {answer_after!r}: {shown}")
        if "<answer>" in answer or "</answer>" in answer:
            raise InputError(
                f"{where}: {answer_column} contains the tag <answer> or </answer>, so it cannot match any reply; "
                f"keep only the text between the tags: {shortened(answer)}"
            )
        return {"question": question, "answer": answer.strip()}

    def located() -> Iterator[tuple[str, str, dict[str, Any] | InputError]]:
        for place, row in read:
            where = f"{name}: {place}"
            try:
                found = row if isinstance(row, InputError) else checked(row, where)
            except InputError as error:
                found = error
            yield where, "" if isinstance(found, InputError) else found["question"], found

    if not (found := distinct(located(), name)):
        raise InputError(f"{name}: no rows found")
    if not answer_after and 2 * sum("####" in row["answer"] for row in found) > len(found):
        print_once(
            f"{name}: most answers contain '####', as in GSM8K, and no reply will equal such an answer: to compare "
            "replies with what follows it, set answer_after to '####' (in a config: data.answer_after: \"####\")"
        )
    return found


def split_rows(
    rows: Sequence[dict[str, Any]], num_eval: int, seed: int = 0
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split rows into training rows and `num_eval` evaluation rows. The selection depends only on `seed` and the
    questions, so adding rows changes few of the evaluation rows. Raises `InputError` if no training rows are left."""
    if num_eval >= len(rows):
        raise InputError(
            f"{counted(num_eval, 'evaluation question')} would leave nothing to train on: "
            f"the number of distinct rows is {len(rows)}"
            + (f", so use at most {len(rows) - 1}" if len(rows) > 1 else "")
        )
    order = in_order(rows, seed)
    chosen = {row["question"] for row in order[:num_eval]}
    return [row for row in rows if row["question"] not in chosen], order[:num_eval]


def in_order(rows: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Return the rows in an order that depends only on `seed` and their questions. The first rows in this order are for
    evaluation."""
    return sorted(rows, key=lambda row: hashlib.sha256(f"{seed}:{row['question']}".encode()).digest())


def _value(row: Mapping[str, Any], column: str, where: str) -> Any:
    """Return a column's value. In "reward_model.ground_truth", the first part is the name of a column of mappings."""
    outer, _, inner = column.partition(".")
    if column in row:
        return row[column]
    if inner and isinstance(row.get(outer), Mapping):
        return _value(row[outer], inner, f"{where}: {outer}")
    columns = ", ".join(map(repr, row)) or "nothing"
    hint = "set question_column and answer_column to the names of the columns"
    raise InputError(f"{where} has no column {column!r}; it has {columns} ({hint})")


def own_question(value: object, where: str) -> str:
    """Return a question from the user's own data: text, or a chat that consists of one message of the user. Raises
    `InputError` if it is unusable."""
    if isinstance(value, list) and value and all(isinstance(each, Mapping) and "role" in each for each in value):
        if [each["role"] for each in value] != ["user"]:
            roles = ", ".join(str(each["role"]) for each in value)
            raise InputError(
                f"{where} must be text or a single user message, but its messages are from {roles}; in Python, "
                "rg_env.Environment accepts any chat as `prompt`"
            )
        value = value[0].get("content")
    return own_text(value, where)


def own_text(value: object, where: str, *, numbers: bool = False) -> str:
    """Return a value from the user's own data as text. Numbers are accepted only if `numbers` is true.

    Raises `InputError` if the value is unusable.
    """
    if _is_missing(value):
        raise InputError(f"{where} is missing")
    if type(value) is not bool and isinstance(value, Real | Decimal):
        if value in (math.inf, -math.inf):
            raise InputError(f"{where} is not a finite number (quote it if it is meant as text)")
        if numbers:
            return str(value)
    if not isinstance(value, str):
        kinds, column = f"text{' or a number' if numbers else ''}", where.rpartition(": ")[2]
        key = (
            f" (for one of its keys, name it: {column}.{next(iter(value), 'KEY')})"
            if isinstance(value, Mapping)
            else ""
        )
        raise InputError(f"{where} must be {kinds}{key}, not {shortened(value)}")
    if not value.strip():
        raise InputError(f"{where} is blank")
    check_text(where, value)
    return value


def _is_missing(value: object) -> bool:
    """Whether `value` is None, a NaN or NaT, or pandas' NA, whose comparison has no truth value."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True
    except ValueError:  # an array
        return False


def distinct(rows: Iterable[tuple[str, str, dict[str, Any] | InputError]], name: str) -> list[dict[str, Any]]:
    """Return the user's own rows without repeats, and print the number of repeats. A repeat may give its answer in
    another form (`1.0` for `1`).

    Args:
        rows: for each row, its location (for messages), its question, and the row itself or the defect in it.

    Raises:
        InputError: rows have defects, or a question has two different answers.
    """
    known: dict[str, tuple[str, str]] = {}
    kept: dict[tuple[str, str], dict[str, Any]] = {}
    defects: dict[str, list[str]] = {}
    """Messages grouped by the text between the location and the value, because one mistake often affects all rows."""
    count = 0
    for count, (where, question, row) in enumerate(rows, 1):  # noqa: B007
        if isinstance(row, InputError):
            kind = _VALUE.sub("", str(row).removeprefix(where))
            defects.setdefault(kind, []).append(str(row))
            continue
        earlier, first = known.setdefault(question, (row["answer"], where))
        if earlier != row["answer"] and not same_value(row["answer"], earlier):
            text = (
                f"{where} asks the same question as {first.removeprefix(f'{name}: ')} but has a different "
                f"answer ({shortened(row['answer'])} and {shortened(earlier)}): remove one of them"
            )
            defects.setdefault(text, []).append(text)
            continue
        kept.setdefault((question, repr({**row, "answer": earlier, "example_id": None})), row)
    if defects:
        raise InputError(_summary(name, list(defects.values())))
    if repeated := count - len(kept):
        print_once(f"{name}: {repeated} of {counted(count, 'row')} omitted because their questions are repeated")
    return list(kept.values())


def _summary(name: str, defects: list[list[str]]) -> str:
    """Return one message for all defects, with similar defects grouped."""
    lines = [f"{first}{f' (and {len(more)} more like it)' if more else ''}" for first, *more in defects]
    if len(lines) == 1:
        return lines[0]
    hidden = len(lines) - _DEFECTS_SHOWN
    rest = [f"and {hidden} more"] if hidden > 0 else []
    return "\n  ".join([f"{name}: {sum(map(len, defects))} defects", *lines[:_DEFECTS_SHOWN], *rest])


def check_text(name: str, text: object) -> None:
    """Raise `InputError` unless `text` is a string that UTF-8 can encode."""
    if not isinstance(text, str):
        raise InputError(f"{name} must be text, not {shortened(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise InputError(f"{name} contains an unpaired surrogate ({half!r}), which UTF-8 cannot encode") from error


def _read(name: str, config: str | None, split: str) -> Iterable[_Located]:
    file = Path(name).expanduser()
    kind = file.suffix.lower()
    if kind not in FILES and not os.path.exists(file):
        return _numbered(_from_hub(name, config, split))
    if file.is_dir() and name:
        raise InputError(f"{shortened(name)} is a folder: pass one of its files")
    if kind not in FILES:
        ends = ", ".join(FILES)
        raise InputError(f"{shortened(name)} is not a data file; data files end in {ends}: rename or convert it")
    try:
        regular(file)
        if kind == ".parquet":
            from pyarrow import parquet  # type: ignore[import-untyped]

            return _numbered(parquet.read_table(file).to_pylist())
        data = file.read_bytes()
    except FileNotFoundError as error:
        hint = similar_file(file) or _RELATIVE
        raise InputError(f"cannot read {shortened(name)}: no such file; {hint}") from error
    except Exception as error:  # pyarrow's parser can raise various errors
        raise InputError(f"cannot read {shortened(name)}: {reason_of(error)}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The offset refers to `error.object`, not to `data`, which may start with a byte order mark.
        line = error.object.count(b"\n", 0, error.start) + 1
        encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin1"
        raise InputError(
            f"{name}: line {line} is not UTF-8 text (byte 0x{error.object[error.start]:02x}): save the file as UTF-8, "
            f"for example with `iconv -f {encoding} -t utf-8`"
        ) from error
    lines = io.StringIO(text, newline="").readlines()  # unlike `splitlines`, this splits only at line breaks
    return _csv_rows(lines, name) if kind in (".csv", ".tsv") else _json_rows(lines, name)


def _numbered(rows: Iterable[Any]) -> Iterator[_Located]:
    return ((f"row {number}", row) for number, row in enumerate(rows, 1))


def _csv_rows(lines: list[str], name: str) -> Iterator[_Located]:
    csv.field_size_limit(max(csv.field_size_limit(), sum(map(len, lines))))
    header = lines[0] if lines else ""  # spreadsheets in many languages separate columns with semicolons
    found = next((each for each in ";\t" if each in header and "," not in header), ",")
    delimiter = "\t" if name.lower().endswith(".tsv") else found
    reader = csv.DictReader(lines, strict=True, delimiter=delimiter)
    read = 0
    try:
        columns = [*(reader.fieldnames or ())]
        if repeated := [column for column in columns if column.strip() and columns.count(column) > 1]:
            raise InputError(f"{name}: line 1 has the column {shortened(repeated[0])} twice: rename or remove one")
        read = reader.line_num
        for row in reader:
            read = reader.line_num
            place = f"line {read}"
            if None in row or None in row.values():
                counts = f"more or fewer columns than the header, which has {len(columns)}"
                yield place, InputError(f"{name}: {place} has {counts}: quote text that contains {delimiter!r}")
            else:
                yield place, row
    except csv.Error as error:  # an open quote may extend over many lines
        place = f"line {read + 1}"
        yield place, InputError(f"{name}: {place} starts a row that is not CSV: {error}")


def _json_rows(lines: list[str], name: str) -> Iterable[_Located]:
    """Return rows from JSON Lines or a JSON list."""
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("["):
        if isinstance(rows := _json("".join(lines), name, 1), InputError):
            raise rows
        return _numbered(rows)
    # If the line break were kept, an error at the end of a line would be reported on the next line.
    filled = [(number, line.rstrip()) for number, line in enumerate(lines, 1) if line.strip()]
    is_broken = first.strip() == "{" and len(filled) > 1 and not filled[1][1].startswith("{")
    if is_broken or (len(filled) == 1 and name.lower().endswith(".json")):
        found = _json("".join(lines), name, 1)
        if isinstance(found, Mapping):
            keys = ", ".join(map(repr, found))
            raise InputError(
                f"{name} is a single JSON object with {keys}: save its rows as a list, or one on each line"
            )
        if is_broken:
            remedy = "write each on one line (`jq -c .`), or all as one list (`jq -s .`)"
            raise InputError(f"{name}: line {filled[0][0]} starts an object of several lines: {remedy}")
    return ((f"line {number}", _json(line, name, number)) for number, line in filled)


def _json(text: str, name: str, line: int) -> Any:
    """Return the parsed text, or an `InputError` if it cannot be parsed."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        return InputError(f"{name}: line {line} is not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        where = name if "\n" in text else f"{name}: line {line}"
        return InputError(f"{where} {error if isinstance(error, InputError) else json_problem(error)}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"has the key {shortened(repeated)} twice in {shortened(values)}: remove one of them")
    return values


def _from_hub(name: str, config: str | None, split: str) -> Sequence[Mapping[str, Any]]:
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"there is no file {name}")
    try:
        import datasets

        offline = datasets.config.HF_HUB_OFFLINE
        # Without a connection, read only the cache, and do not retry.
        datasets.config.HF_HUB_OFFLINE = offline or not hub_answers()
        try:
            return list(datasets.load_dataset(name, config, split=split))
        finally:
            datasets.config.HF_HUB_OFFLINE = offline
    except Exception as error:  # the parsers of `datasets` can raise various errors
        cause: BaseException = error
        while cause.__cause__:  # `datasets` wraps the error that caused the failure
            cause = cause.__cause__
        unreachable = "it is not a local file, the Hub cannot be reached, and the dataset is not in the cache"
        reason = unreachable if isinstance(error, ConnectionError) else reason_of(cause)
        raise InputError(f"cannot read the dataset {shortened(name)}: {reason}") from error
