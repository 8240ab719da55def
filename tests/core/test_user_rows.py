"""The user's own questions and answers: files of each kind, and every defect with its location."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from data_files import data

from rg_env.core.data.user_rows import DataConfig, load_rows, split_rows
from rg_env.errors import InputError

GOOD = [{"question": "2 + 2", "answer": "#### 4"}]


def as_lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_files_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    """All formats give the same rows. Answers become text, other columns are ignored, and repeated questions are
    counted."""
    import pyarrow
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    rows = [{"id": i, "question": f"{i % 5} + 1, say", "answer": i % 5 + 1} for i in range(8)]
    path = tmp_path / f"data.{suffix}"
    if suffix == "jsonl":
        path.write_text(as_lines(*rows).replace("\n", "\n\n"))
    elif suffix == "json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8-sig")
    else:
        {"csv": arrow_csv.write_csv, "parquet": parquet.write_table}[suffix](pyarrow.Table.from_pylist(rows), str(path))
    assert load_rows(str(path)) == [{"question": f"{i} + 1, say", "answer": str(i + 1)} for i in range(5)]
    assert "data." in (output := capsys.readouterr().out)
    assert output.endswith(": 3 of 8 rows omitted because their questions are repeated\n")


def test_columns_and_answers_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    """GSM8K's answers are the text after a marker. If the marker is not named, a line warns that no reply will be
    right."""
    rows = [{"Problem": "1 + 1", "Solution": "one more: #### 2 "}, {"Problem": "2 + 2", "Solution": "#### a #### 4"}]
    found = load_rows(rows, question_column="Problem", answer_column="Solution", answer_after="####")
    assert [row["answer"] for row in found] == ["2", "4"]
    assert capsys.readouterr().out == ""
    load_rows(rows, question_column="Problem", answer_column="Solution")
    assert "set answer_after to '####'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        *(tuple(case.values()) for case in data("bad_rows")),
        ("a.jsonl", as_lines(*GOOD) + "1" * 5000, "a.jsonl: line 2 has a number with more than 4,300 digits$"),
        ("a.jsonl", "[" * 100_000, "line 1 is nested too deeply$"),
    ],
)
def test_a_defect_is_reported_with_its_place(tmp_path: Path, name: str, text: str, error: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=error) as caught:
        load_rows(str(tmp_path / name), answer_after="####")
    assert "\n" not in str(caught.value)


def test_all_defects_are_reported_at_once(tmp_path: Path) -> None:
    """The first ten defects are reported with their lines, whatever their kind; similar ones are counted."""
    lines = ['{"question": "cut', as_lines({"question": "", "answer": 1}).strip(), "7", *["{}"] * 3]
    lines += [json.dumps({"question": "1 + 1", "answer": answer}) for answer in (2, 3)]
    (file := tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        load_rows(str(file))
    head, *found = str(caught.value).splitlines()
    assert head.endswith("a.jsonl: 7 defects")  # a long path is shortened in the middle
    assert [re.findall(r"line \d+", line)[0] for line in found] == ["line 1", "line 2", "line 3", "line 4", "line 8"]
    assert found[3].endswith("(and 2 more like it)")

    file.write_text("\n".join(f"{number}" for number in range(15)))
    with pytest.raises(InputError, match=r": line 1 must be a mapping of columns, not 0 \(and 14 more like it\)$"):
        load_rows(str(file))
    file.write_text(as_lines(*({"question": str(number // 2), "answer": number} for number in range(30))))
    with pytest.raises(InputError, match=r"15 defects(?s:.*)line 20 asks (?s:.*)remove one of them\n  and 5 more$"):
        load_rows(str(file))


def test_every_path_gives_the_data_a_name() -> None:
    """Without a name, an evaluation would take the data for missing, and not say what is wrong with the path."""
    names = [DataConfig(path=path).task_name for path in ("sums.csv", "a/b", "maze.csv", ".", "/")]
    assert names == ["sums", "b", "maze_data", "data", "data"]


def test_other_tools_files_are_read(tmp_path: Path) -> None:
    """Files of verl have chats and nested answers, and spreadsheets may separate columns with semicolons or tabs."""
    verl = {"prompt": [{"role": "user", "content": "2 + 2, say"}], "reward_model": {"ground_truth": 4}}
    columns = {"question_column": "prompt", "answer_column": "reward_model.ground_truth"}
    assert load_rows([verl], **columns) == [{"question": "2 + 2, say", "answer": "4"}]
    (file := tmp_path / "verl.jsonl").write_text(as_lines(verl))
    assert DataConfig(path=str(file), **columns).place("2 + 2, say") == f"line 1 of {file}"
    with pytest.raises(InputError, match="row 1: reward_model has no column 'gold'; it has 'ground_truth'"):
        load_rows([verl], **{**columns, "answer_column": "reward_model.gold"})
    for name, separator, column in (("a.csv", ";", "note"), ("a.csv", "\t", "note"), ("a.tsv", "\t", "note, if any")):
        text = f"question{separator}answer{separator}{column}\n2 + 2, say{separator}4,5{separator}\n"
        (tmp_path / name).write_text(text)
        assert load_rows(str(tmp_path / name)) == [{"question": "2 + 2, say", "answer": "4,5"}]


def test_equal_answers_are_repeats() -> None:
    """Answers are equal if the grader accepts them as equal. A question that was kept twice could be in both splits."""
    rows = [{"question": "1 + 0", "answer": answer} for answer in ("1.0", 1, " $1$ ", "2/2")]
    assert load_rows(rows) == [{"question": "1 + 0", "answer": "1.0"}]


def test_long_fields_and_unnamed_columns_of_csv(tmp_path: Path) -> None:
    question = "7" * 200_000
    (tmp_path / "a.csv").write_text(f"question,answer,,\n{question},7,,\n")
    assert load_rows(str(tmp_path / "a.csv")) == [{"question": question, "answer": "7"}]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("latin.csv", r"line 2 is not UTF-8 text \(byte 0xe9\): .*iconv -f latin1"),
        ("mixed.csv", r"line 3 is not UTF-8 text \(byte 0xe9\)"),
        (
            "missing.jsonl",
            "cannot read 'missing.jsonl': no such file; relative paths are resolved from the working directory",
        ),
        ("./nowhere", "there is no file ./nowhere"),
        ("", "'' is not a data file"),
        ("a\0b.csv", "cannot read 'a.*null"),
        (".", "'.' is a folder: pass one of its files"),
        ("problems.txt", "'problems.txt' is not a data file; data files end in .csv, .*: rename or convert it"),
        ("no/problems.csv", "no such file; the folder no does not exist"),
        ("utf16.csv", r"line 1 is not UTF-8 text \(byte 0xff\): .*`iconv -f utf-16 -t utf-8`"),
    ],
)
def test_sources_that_cannot_be_read(source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin.csv").write_bytes("question,answer\ncafé,1\n".encode("latin-1"))
    Path("utf16.csv").write_text("question,answer\ntea,1\n", encoding="utf-16")
    Path("problems.txt").write_text("tea\n")
    Path("mixed.csv").write_bytes(b"\xef\xbb\xbfquestion,answer\ntea,1\n\xe9t\xe9,2\n")
    with pytest.raises(InputError, match=words):
        load_rows(source)


def test_evaluation_rows_stay_when_rows_are_added() -> None:
    """Evaluation rows depend on seed and question, and are not trained on."""
    rows = [{"question": str(i), "answer": "1"} for i in range(50)]
    train, evaluation = split_rows(rows, 10, seed=1)
    assert [len(train), len(evaluation)] == [40, 10]
    assert not {row["question"] for row in train} & {row["question"] for row in evaluation}
    assert split_rows(rows[::-1], 10, seed=1)[1] == evaluation != split_rows(rows, 10, seed=2)[1]
    more = split_rows([*rows, {"question": "new", "answer": "1"}], 10, seed=1)[1]
    assert len([row for row in more if row in evaluation]) >= 9
    with pytest.raises(
        InputError, match=r"50 evaluation questions would .*the number of distinct rows is 50, so use at most 49"
    ):
        split_rows(rows, 50)


def test_a_dataset_that_cannot_be_reached_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library's messages about retries are not shown."""
    monkeypatch.setattr("rg_env.core.data.user_rows.hub_answers", lambda: False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="cannot read the dataset 'nofile': it is not a local file, the Hub cannot"):
        load_rows("nofile")
    assert capfd.readouterr() == ("", "")
