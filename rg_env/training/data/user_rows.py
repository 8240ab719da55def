"""Rows of the user's own to train on: questions and answers from a file, the dataset hub, or a list.

data = load_rows("problems.jsonl")
data = load_rows("openai/gsm8k", "main", answer_after="####")
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from datasets import Dataset, Value, load_dataset

from rg_env.core.text import reason_of
from rg_env.errors import InputError

_KINDS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_COLUMNS = ["question", "answer"]


def load_rows(
    source: str | Sequence[Mapping[str, Any]], config: str | None = None, *, answer_after: str | None = None
) -> list[dict[str, str]]:
    """Rows with question and answer as text, each question once: twice, it could be in training and in evaluation.

    Args:
        source: a .csv, .json, .jsonl or .parquet file, the name of a dataset on the hub, or rows. Numbers will do as
            answers.
        config: configuration of a dataset on the hub.
        answer_after: the answer is what follows this text.

    Raises:
        InputError: it cannot be read, or a question or an answer is missing or no text; with row, from 1, and column.
    """
    name = source if isinstance(source, str) else "the rows"
    data = _read(source, config) if isinstance(source, str) else Dataset.from_list([dict(row) for row in source])
    if not len(data):
        raise InputError(f"{name}: there are no rows")
    if missing := sorted(set(_COLUMNS) - set(data.column_names)):
        raise InputError(f"{name} lacks {', '.join(missing)}; it has {', '.join(data.column_names)}")
    data = data.select_columns(_COLUMNS)
    for column, kinds in (("question", str), ("answer", str | int | float | Decimal)):
        for number, value in enumerate(data[column][:], start=1):
            if value is None or (isinstance(value, float) and math.isnan(value)):
                raise InputError(f"{name}: row {number} has no {column}")
            if not isinstance(value, kinds):
                raise InputError(f"{name}: row {number}: its {column} is not text, but {type(value).__name__}")
            if isinstance(value, str) and not value.strip():
                raise InputError(f"{name}: row {number}: its {column} is blank")
    data = data.cast_column("answer", Value("string"))
    answers = [text.split(answer_after)[-1].strip() if answer_after else text.strip() for text in data["answer"][:]]
    if "" in answers:
        raise InputError(f"{name}: row {answers.index('') + 1}: nothing follows {answer_after!r} in its answer")
    unique: dict[str, str] = {}
    for question, answer in zip(data["question"][:], answers, strict=True):
        unique.setdefault(question, answer)
    return [{"question": question, "answer": answer} for question, answer in unique.items()]


def _read(name: str, config: str | None) -> Dataset:
    if not name.strip():
        raise InputError("the name of the dataset is empty")
    kind = _KINDS.get(Path(name).suffix)
    options = {"path": kind, "data_files": name} if kind else {"path": name, "name": config}
    try:
        return load_dataset(**options, split="train")
    except Exception as error:  # readers raise whatever their parser raises
        cause: BaseException = error
        while cause.__cause__:  # `datasets` raises a general error from what happened
            cause = cause.__cause__
        empty = isinstance(cause, StopIteration)
        reason = "it holds no rows" if empty else reason_of(cause)
        shown = name if len(name) <= 80 else f"{name[:80]}..."
        raise InputError(f"cannot read the dataset {shown!r}: {reason}") from error
