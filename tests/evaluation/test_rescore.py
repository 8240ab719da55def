"""Existing replies: the formats of their files, their entries, and the results."""

import csv
import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from rich.console import Console
from run_code import files_up_to

import rg_env
from rg_env.cli.main import run as rg_env_command
from rg_env.core.run_folder import json_lines
from rg_env.errors import InputError, UnknownNameError
from rg_env.evaluation.replies import GivenReply, read_replies
from rg_env.evaluation.rescore import score_replies
from rg_env.evaluation.results import Results, merged, read_results, results_files

GCD = {
    "question": "Find the Greatest Common Divisor (GCD) of these numbers: 12, 20.",
    "answer": "4",
    "metadata": {"source_dataset": "gcd", "source_index": 0},
}
LIBRARY_GCD = (
    "Find the Greatest Common Divisor (GCD) of these numbers: 428, 500. Give only the GCD as your final answer."
)
"""The first question of gcd with seed 45."""
CONTRADICTION = {
    "question": "Given:\n1. P\n.2. ¬P",
    "answer": None,
    "metadata": {"variables": ["P", "Q"], "premises": ["P", "¬P"], "example_answer": "Q"},
}
RIGHT, WRONG = "so <answer>4</answer>", "so <answer>5</answer>"


def _lines(path: Path, rows: list[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _scored(path: Path, **options: Any) -> tuple[Results, list[dict[str, Any]]]:
    results, folder = score_replies(path, output_dir=str(path.with_name(f"{path.name}.out")), **options)
    return results, list(json_lines(folder / "rollouts.jsonl"))


def _samples(tmp_path: Path) -> dict[str, Path]:
    """The same two replies, the first of which is right, in each format."""
    info = {"rg_task": "gcd", "config": "{}", "entry": json.dumps(GCD)}
    chat = [{"role": "user", "content": GCD["question"]}]
    assistant = [{"role": "assistant", "content": text} for text in (RIGHT, WRONG)]
    files = {name: tmp_path / name for name in ("rows", "verifiers", "lm_eval/m", "inspect", "csv", "tsv", "parquet")}
    for folder in files.values():
        folder.mkdir(parents=True)
    rows = [{"task": "gcd", "entry": GCD, "reply": text, "model": "m"} for text in (RIGHT, WRONG)]
    verifiers = {"example_id": 0, "task": "default", "prompt": chat, "answer": "4", "reward": 0.1, "info": info}
    found = {
        "jsonl": _lines(files["rows"] / "a.jsonl", rows),
        "vf-eval": _lines(
            files["verifiers"] / "results.jsonl",
            [{**verifiers, "completion": [message]} for message in assistant],
        ),
        "lm-eval": _lines(
            files["lm_eval/m"] / "samples_x_2026-01-01.jsonl",
            [{"doc_id": 0, "doc": GCD, "target": "4", "resps": [[t]], "filtered_resps": [t]} for t in (RIGHT, WRONG)],
        ),
    }  # fmt: skip
    files["verifiers"].joinpath("metadata.json").write_text(json.dumps({"model": "m"}))
    log = {
        "eval": {"task": "rg/gcd", "model": "m"},
        "samples": [
            {
                "id": n,
                "input": chat,
                "target": "4",
                "output": {"choices": [{"message": m}]},
                "metadata": GCD["metadata"],
            }
            for n, m in enumerate(assistant)
        ],
    }
    found["inspect json"] = files["inspect"] / "log.json"
    found["inspect json"].write_text(json.dumps(log))
    found["inspect eval"] = files["inspect"] / "log.eval"
    with zipfile.ZipFile(found["inspect eval"], "w") as archive:
        archive.writestr("header.json", json.dumps({"eval": log["eval"]}))
        for sample in log["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_1.json", json.dumps(sample))
    for kind, delimiter in {"csv": ",", "tsv": "\t"}.items():
        found[kind] = files[kind] / f"a.{kind}"
        with found[kind].open("w", newline="") as file:
            writer = csv.writer(file, delimiter=delimiter)
            writer.writerow(["task", "entry", "response", "model"])
            writer.writerows([["gcd", json.dumps(GCD), text, "m"] for text in (f"a\n{RIGHT}", WRONG)])
    return found


def test_every_format_is_read_as_it_is(tmp_path: Path) -> None:
    """The two replies are found in each format, with their task, model, entry and text."""
    for name, file in _samples(tmp_path).items():
        found = list(read_replies(file))
        assert [(each.task, each.model) for each in found] == [("gcd", "m")] * 2, name
        assert [RIGHT in found[0].text, WRONG in found[1].text] == [True, True], name
        assert [each.entry and each.entry["metadata"] for each in found] == [GCD["metadata"]] * 2, name
    results, records = _scored(file)
    assert results.tasks["gcd"].models["m"].scores.accuracy == 0.5
    assert [record["status"] for record in records] == ["correct", "wrong"]
    assert {record["question"] for record in records} == {GCD["question"]}


def test_parquet_files_are_read_in_batches(tmp_path: Path) -> None:
    rows = [{"task": "gcd", "entry": json.dumps(GCD), "completion": text} for text in [RIGHT, WRONG] * 300]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    results, records = _scored(tmp_path / "a.parquet")
    assert (len(records), results.models["a"].accuracy) == (600, 0.5)


def _paper(
    folder: Path, model: str, replies: list[str], question: str = LIBRARY_GCD, gold: str = "4", task: str = "gcd"
) -> Path:
    """A file in the format of reasoning-gym-eval."""
    file = folder / f"{model}_20250315_163713" / "arithmetic" / f"{task}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    completions = [{"model_answer": None, "full_model_response": text, "score": 0.5} for text in replies]
    result = {"question": question, "expected_answer": gold, "completions": completions}
    content = {"name": task, "category": "arithmetic", "config": {"size": 50, "seed": 45}, "results": [result]}
    file.write_text(json.dumps(content))
    return file


def test_questions_are_looked_up_in_the_library(tmp_path: Path) -> None:
    """Questions of published files get the entries that the library generates. One that it does not generate is graded
    by its gold answer if that is enough, and otherwise noted and not counted."""
    _paper(tmp_path / "runs", "one", [RIGHT, WRONG])
    _paper(tmp_path / "runs", "two", [RIGHT], "GCD of 8 and 12?")
    _paper(tmp_path / "runs", "three", ["<answer>0 1</answer>"], "Which matrix?", "0 1", "rotate_matrix")
    results, records = _scored(tmp_path / "runs")
    assert {model: each.accuracy for model, each in results.models.items()} == {"one": 0.5, "two": 1.0}
    assert results.tasks["gcd"].questions.n == 2
    [note] = results.notes
    assert "1 of rotate_matrix" in note
    assert "does not generate this question" in note
    assert [record["published"] for record in records] == [0.5] * 4


def test_seed_and_index_name_an_entry(tmp_path: Path) -> None:
    rows = [{"task": "gcd", "seed": 45, "size": 2, "index": 0, "reply": RIGHT}]
    _, [record] = _scored(_lines(tmp_path / "a.jsonl", rows))
    assert (record["question"], record["status"]) == (LIBRARY_GCD, "correct")


@pytest.mark.parametrize(
    ("given", "bars"),
    [({"entry": GCD}, ["replies 1 of 1"]), ({"seed": 45, "size": 2, "index": 0}, ["entries 1 of 1", "replies 1 of 1"])],
)
def test_the_search_for_entries_is_shown_if_there_is_one(
    tmp_path: Path, given: dict[str, Any], bars: list[str]
) -> None:
    output = io.StringIO()
    _scored(_lines(tmp_path / "a.jsonl", [{"task": "gcd", "reply": RIGHT, **given}]), console=Console(file=output))
    assert re.findall(r"\w+ \d+ of \d+", " ".join(output.getvalue().split())) == bars


def test_questions_that_rg_env_leaves_out_are_counted_apart(tmp_path: Path) -> None:
    """They are graded, but overall figures do not include them."""
    rows = [
        {"task": "gcd", "entry": GCD, "reply": RIGHT},
        {"task": "propositional_logic", "entry": CONTRADICTION, "reply": "<answer>Q</answer>"},
    ]
    results, records = _scored(_lines(tmp_path / "a.jsonl", rows))
    assert list(results.tasks) == ["gcd", "propositional_logic left out"]
    assert results.models["a"].accuracy == 1.0
    assert "contradict" in records[1]["detail"]


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_a_byte_order_mark_is_skipped(suffix: str, tmp_path: Path) -> None:
    """Editors on Windows write one at the start of a file."""
    row = {"task": "gcd", "entry": GCD, "reply": RIGHT}
    file = tmp_path / f"a{suffix}"
    file.write_text(json.dumps(row if suffix == ".jsonl" else [row]), encoding="utf-8-sig")
    assert [record["correct"] for record in _scored(file)[1]] == [True]


def test_lenient_reading_is_shown_next_to_strict_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers without tags are correct only leniently. A tagged answer that is wrong stays wrong."""
    texts = [RIGHT, "It is \\boxed{4}.", "The answer is 4.", "4", "answer>4</answer>", "<answer>4", "5 or\n\n4"]
    texts += [WRONG + " or 4", "<think>4", "<think>a</think>\n4", "4 or 5", ""]
    file = _lines(tmp_path / "a.jsonl", [{"task": "gcd", "entry": GCD, "reply": text} for text in texts])
    results, records = _scored(file, lenient=True)
    assert [record["correct"] for record in records] == [True] + [False] * 11
    assert [record["lenient"] for record in records] == [True] * 7 + [False, False, True, False, False]
    scores = results.tasks["gcd"].models["a"].scores
    assert (scores.accuracy, scores.lenient_accuracy) == (pytest.approx(1 / 12), pytest.approx(8 / 12))
    assert rg_env_command(["score", str(file), "--extraction", "lenient", "--output-dir", str(tmp_path / "out")]) == 0
    assert "lenient accuracy" in capsys.readouterr().out


def test_results_work_with_the_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rg-env report` and `rg-env plot` accept the results, also of models with different tasks, and results of two
    files can be merged."""
    rows = [{"task": "gcd", "entry": GCD, "reply": text, "model": m} for m in ("one", "two") for text in (RIGHT, WRONG)]
    rows += [{"task": "lcm", "entry": {**GCD, "question": "LCM?"}, "reply": RIGHT, "model": "two"}]
    file = _lines(tmp_path / "a.jsonl", rows)
    for name in ("x", "y"):
        assert rg_env_command(["score", str(file), "--output-dir", str(tmp_path / name)]) == 0
    [one], [other] = (results_files(tmp_path / name) for name in ("x", "y"))
    assert merged({"x": read_results(one)}).models.keys() == {"one", "two"}
    assert read_results(one).tasks == read_results(other).tasks
    assert rg_env_command(["report", str(tmp_path / "x")]) == 0
    assert rg_env_command(["plot", str(one)]) == 0
    assert (tmp_path / "x" / "report.html").stat().st_size > 10_000
    assert "two - one" in (tmp_path / "x" / "summary.md").read_text()


def test_the_rollouts_of_a_training_run_are_read(tmp_path: Path) -> None:
    """Its other files, such as the metrics, are not replies."""
    _lines(tmp_path / "metrics.jsonl", [{"step": 1, "reward": 0.5}])
    _lines(tmp_path / "rollouts.jsonl", [{"task": "gcd", "question": LIBRARY_GCD, "completion": RIGHT, "answer": "4"}])
    assert [given.text for given in read_replies(tmp_path)] == [RIGHT]


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"question": "?", "reply": "4"}, "a.jsonl:1 names no task: add a column `task`, or pass --task (for your own"),
        ({"task": "gdc", "question": "?", "reply": "4"}, "a.jsonl:1: unknown task 'gdc': did you mean 'gcd'?"),
        ({"task": "gcd", "question": "?"}, "a.jsonl:1 has no reply: it needs one of the columns reply, completion"),
        ({"task": "gcd", "reply": "4"}, "a.jsonl:1 needs a question, or an entry, or the library's seed and index"),
        ({"task": "gcd", "question": "?", "reply": "4", "seed": "x"}, "seed must be a whole number, not 'x'"),
        ({"task": "gcd", "question": "?", "reply": "4", "config": 3}, "a.jsonl:1: config must be a mapping of options"),
        *(
            ({"task": "gcd", "question": "?", "response": reply}, "a.jsonl:1: a reply must be text, or messages")
            for reply in (4, {"choices": [{"message": {"content": RIGHT}}]}, [{"role": "user", "content": RIGHT}])
        ),
    ],
)  # fmt: skip
def test_mistakes_in_rows_are_reported_with_their_place(tmp_path: Path, row: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=r"a\.jsonl:1") as raised:
        list(read_replies(_lines(tmp_path / "a.jsonl", [row])))
    assert error in str(raised.value)


def test_a_reply_that_is_a_list_in_json_is_text(tmp_path: Path) -> None:
    [given] = read_replies(_lines(tmp_path / "a.jsonl", [{"task": "gcd", "question": "?", "reply": "[1, 2]"}]))
    assert given.text == "[1, 2]"
    row = {"task": "gcd", "question": "?", "reply": json.dumps([{"role": "user", "content": "<answer>4</answer>"}])}
    with pytest.raises(InputError, match="messages with one of the assistant"):
        list(read_replies(_lines(tmp_path / "a.jsonl", [row])))


def test_an_incomplete_entry_is_reported_with_its_place(tmp_path: Path) -> None:
    path = _lines(tmp_path / "a.jsonl", [{"task": "gcd", "entry": {"question": "?"}, "reply": "4"}])
    with pytest.raises(InputError, match=r"a\.jsonl:1: entry must be an item of the library with question, answer and"):
        score_replies(path, output_dir=str(tmp_path / "out"))


def test_an_unknown_task_is_refused_even_if_all_rows_name_theirs(tmp_path: Path) -> None:
    path = _lines(tmp_path / "a.jsonl", [{"task": "gcd", "entry": GCD, "reply": RIGHT}])
    with pytest.raises(UnknownNameError, match="unknown task 'gdc': did you mean 'gcd'"):
        score_replies(path, task="gdc", output_dir=str(tmp_path / "out"))


def test_mistakes_in_files_are_reported(tmp_path: Path) -> None:
    """Each error is one line, and no output folder is left behind."""
    empty = _lines(tmp_path / "empty.jsonl", [])
    cut = tmp_path / "cut.jsonl"
    cut.write_text('{"task": "gcd"')
    damaged = tmp_path / "x.eval"
    damaged.write_text("no zip")
    for path, error in [
        (tmp_path / "none.jsonl", "none.jsonl cannot be read: No such file"),
        (tmp_path / "none.txt", "must be a folder or a .jsonl"),
        (empty, "contains no replies"),
        (cut, "cut.jsonl:1 is not JSON: "),
        (damaged, "x.eval cannot be read: File is not a zip file"),
    ]:
        with pytest.raises(InputError, match=r".") as raised:
            score_replies(path, output_dir=str(tmp_path / "out"))
        assert error in str(raised.value)
        assert "\n" not in str(raised.value)
        assert not (tmp_path / "out").exists()


def test_one_reply_is_graded_from_python() -> None:
    """By its entry, or by a question that the library generates for a config with a seed."""
    assert rg_env.grade("gcd", GCD, RIGHT).status == "correct"
    assert rg_env.grade("gcd", GCD, [{"role": "assistant", "content": WRONG}]).status == "wrong"
    assert rg_env.grade("gcd", LIBRARY_GCD, RIGHT, {"seed": 45, "size": 3}).status == "correct"
    with pytest.raises(UnknownNameError, match="did you mean 'gcd'"):
        rg_env.grade("gdc", GCD, RIGHT)
    for config in (None, {"seed": "45"}):
        with pytest.raises(InputError, match="needs the library's seed"):
            rg_env.grade("gcd", LIBRARY_GCD, RIGHT, config)
    with pytest.raises(InputError, match="config must be a mapping"):
        rg_env.grade("gcd", LIBRARY_GCD, RIGHT, 45)  # type: ignore[arg-type]
    for reply in (None, 4, b"4", [{"role": "user", "content": RIGHT}]):
        with pytest.raises(InputError, match="a reply must be text, or messages with one of the assistant, not"):
            rg_env.grade("gcd", GCD, reply)
    for entry in (None, 4, {"question": "?"}):
        with pytest.raises(InputError, match="the entry must be an item of the library"):
            rg_env.grade("gcd", entry, RIGHT)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"for a row of an environment, use env\.score"):
        rg_env.grade("gcd", {"question": "?", "answer": "4", "info": {}}, RIGHT)
    with pytest.raises(InputError, match="does not generate this question"):
        rg_env.grade("gcd", "GCD of 3 and 4?", RIGHT, {"seed": 45, "size": 3})


def test_library_rows_are_never_compared_as_text_without_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    rg_env.Environment(eval_rows=[{**GCD, "info": {}}])
    assert "Reasoning Gym's gcd are graded by comparing answers as text" in capsys.readouterr().out
    rg_env.Environment(eval_rows=[{"question": "1 + 1?", "answer": "2", "metadata": {"source_dataset": "mine"}}])
    assert "text" not in capsys.readouterr().out


def test_given_replies_have_no_defaults_from_other_rows(tmp_path: Path) -> None:
    """Rows without a model are named after the file, and `--task` applies only to rows without a task."""
    rows = [{"entry": GCD, "reply": RIGHT}, {"task": "lcm", "question": "?", "answer": "4", "reply": RIGHT}]
    first, second = read_replies(
        _lines(tmp_path / "a.jsonl", [{**rows[0], "entry": {**GCD, "metadata": {}}}, rows[1]]), "gcd"
    )
    assert isinstance(first, GivenReply)
    assert (first.task, first.model, second.task, second.answer) == ("gcd", "a", "lcm", "4")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gcd.json", {"name": "gcd", "results": [{"completions": [{"full_model_response": "4"}]}]}),
        ("gcd.json", {"name": "gcd", "results": [7]}),
        ("all.json", {"categories": [3]}),
        ("all.json", {"categories": [{"datasets": ["gcd"]}]}),
        ("log.json", {"eval": {"task": "gcd"}, "samples": [3]}),
        ("log.json", {"eval": 3, "samples": []}),
        ("log.json", {"eval": {"task": "gcd"}, "samples": [{"input": "x", "output": {"choices": [1]}}]}),
    ],
)
def test_files_with_andamage_reported_are_one_line_errors(tmp_path: Path, name: str, text: Any) -> None:
    (tmp_path / name).write_text(json.dumps(text))
    with pytest.raises(InputError, match=f"{name}.* has not the structure") as caught:
        list(read_replies(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """The folder, which would contain only some of the replies, is removed."""
    file = _lines(tmp_path / "a.jsonl", [{"task": "gcd", "entry": GCD, "reply": RIGHT}] * 100)
    with files_up_to(10_000), pytest.raises(OSError, match=r"File too large: '.*a\.jsonl\.out/rollouts\.jsonl'"):
        _scored(file)
    assert not (tmp_path / "a.jsonl.out").exists()
