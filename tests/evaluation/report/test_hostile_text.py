"""`rg-env report` with hostile text of models, damaged files, and sources that are not reports."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from report_samples import (
    HOSTILE,
    Reader,
    evaluation_record,
    page_data,
    training_record,
    write_lines,
    write_run,
)

from rg_env.errors import InputError
from rg_env.evaluation.report import write_report
from rg_env.evaluation.report.page import Page, Rollouts, as_script_data, render


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("metrics.jsonl", '{"step": 5, "re'), ("metrics.jsonl", '{"reward": 7}'), ("rollouts.jsonl", "[1]"),
        ("rollouts.jsonl", '{"step": 5, "completion": "no question"}'),
        ("eval_results/eval_step_4.json", "{"), ("train_results.json", "]"), ("config.yaml", "a: ["),
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_error_that_names_it(tmp_path: Path, name: str, line: str) -> None:
    """No page is made of the rest."""
    run = write_run(tmp_path / "run")
    with (run / name).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(InputError, match=rf"{name} is damaged: .*; restore it from a copy, or remove it$"):
        write_report(run)
    assert not list(tmp_path.rglob("*.html"))


def test_the_last_line_of_a_killed_run_may_be_incomplete(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        with (run / name).open("a") as file:
            file.write('{"step": 5, "ques')
    (run / "train_results.json").unlink()
    data = page_data(write_report(run).file)
    assert data["metrics"]["values"]["reward"][0] == [1, 2, 3, 4]
    assert ["state", "not finished"] in data["facts"]


def test_gold_answers_may_be_other_values_than_text(tmp_path: Path) -> None:
    """They are shown as JSON."""
    write_lines(tmp_path / "rollouts.jsonl", [training_record(1, answer=[1, 2], level=3)])
    (record,) = page_data(write_report(tmp_path).file)["rollouts"]["records"]
    assert (record["answer"], record["level"]) == ("[1, 2]", 3)


def test_nothing_to_report_is_one_line(tmp_path: Path, report: Callable[..., tuple[int, str, str]]) -> None:
    """And exit code 2, and no page."""
    for name, file, text in (
        ("sweep", "sweep.yaml", "{}"), ("bare", "notes.txt", ""), ("started", "metrics.jsonl", ""),
        ("other", "results_x.json", '{"format": "rg_env.evaluation/7"}'), ("none", "rollouts.jsonl", "\n"),
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    run = write_run(tmp_path / "run")
    for source, words in (
        ("absent", "does not exist"),
        ("bare", "holds neither a training run (metrics.jsonl, eval_results/) nor an evaluation"),
        ("sweep", "is a sweep: give the folder of one of its runs, or use `rg-env compare"),
        ("started", "holds a training run without metrics, evaluations or rollouts"),
        ("other", "results_x.json is damaged: it is not results of this version: format"),
        ("none", "holds no rollouts"),
        (run / "train_results.json", "is damaged: it is not results of this version"),
        (run / "rollouts.jsonl", "is part of a training run: give its folder"),
    ):
        code, printed, errors = report(tmp_path / source)
        assert (code, printed, errors.count("\n")) == (2, "", 1), errors
        assert words in errors
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("run/rollouts.jsonl", "does not end in .html"),
        ("nowhere/page.html", "cannot write"),
        ("folder.html", "cannot write"),
    ],
)
def test_a_page_that_cannot_be_written(
    tmp_path: Path, report: Callable[..., tuple[int, str, str]], output: str, words: str
) -> None:
    """No file of the run is lost, and nothing half is left."""
    run = write_run(tmp_path / "run")
    (tmp_path / "folder.html").mkdir()
    before = (run / "rollouts.jsonl").read_bytes()
    code, _, errors = report(run, "--output", tmp_path / output)
    assert (code, errors.count("\n")) == (2, 1)
    assert words in errors
    assert (run / "rollouts.jsonl").read_bytes() == before
    assert not list(tmp_path.rglob("*.part"))


def test_a_folder_with_a_name_that_is_no_text(tmp_path: Path) -> None:
    """As other systems leave them: the page is made all the same."""
    run = write_run(Path(f"{tmp_path}/<b>\udcff"))
    reader = Reader(write_report(run).file.read_text(encoding="utf-8"))
    assert reader.found["title"] == ["<b>? · rg_env report"]
    assert reader.data["title"] == "<b>\udcff"


def test_the_policy_lets_only_the_pages_own_code_run(tmp_path: Path) -> None:
    """By hash; no address is loaded, and no attribute is code."""
    reader = Reader(write_report(write_run(tmp_path / "run")).file.read_text(encoding="utf-8"))
    rules = dict(rule.strip().split(" ", 1) for rule in reader.policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag in ("script", "style"):
        (text,) = reader.found[tag]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert (rules["require-trusted-types-for"], rules["trusted-types"]) == ("'script'", "'none'")
    for name, value in reader.attributes:
        assert not name.startswith("on")
        assert name != "style"
        if name in ("src", "href", "action"):
            assert (value or "").startswith(("#", "data:,"))


def test_hostile_texts_stay_within_the_data(tmp_path: Path) -> None:
    """A question, an answer, a model's name: none of them adds a tag to the page, and all come back as they were."""
    texts = [evaluation_record("base", n, 0, True)["question"] for n in range(len(HOSTILE))]
    plain, hostile = tmp_path / "plain", tmp_path / "hostile"
    for folder, said in ((plain, texts), (hostile, list(HOSTILE))):
        folder.mkdir()
        fields = (
            "question",
            "completion",
            "reasoning",
            "answer",
            "extracted",
            "model",
            "task",
            "detail",
            "status",
            "error",
        )
        records = [evaluation_record("base", n, 0, True) | dict.fromkeys(fields, text) for n, text in enumerate(said)]
        write_lines(folder / "rollouts.jsonl", records)
    readers = [Reader(write_report(folder).file.read_text(encoding="utf-8")) for folder in (plain, hostile)]
    assert readers[0].attributes == readers[1].attributes
    assert readers[0].found["script"] == readers[1].found["script"]
    data = readers[1].data["rollouts"]
    assert [data["texts"][record["question"]] for record in data["records"]] == list(HOSTILE)
    assert [record["completion"] for record in data["records"]] == list(HOSTILE)


TEXTS = st.text(st.characters() | st.sampled_from("<>&/!-'\"\\$\u2028\u2029\ud800\udfff\x00\r\n"))


@given(TEXTS)
@example("".join(HOSTILE))
def test_any_text_comes_back_from_a_page(text: str) -> None:
    """Through JSON and HTML, by a parser of HTML, in a page that has no more tags than another one."""
    record = {"question": 0, "completion": text, "rewards": {text: 1.0}}
    page = render(Page(text, text, notes=[text], rollouts=Rollouts([record], [text], [text], 1)))
    reader = Reader(page.encode("utf-8", "replace").decode())
    assert reader.data["rollouts"] == {"records": [record], "texts": [text], "variants": [text], "found": 1}
    assert (reader.data["title"], reader.data["notes"]) == (text, [text])
    assert len(reader.attributes) == len(Reader(render(Page("", ""))).attributes)
    assert as_script_data(text).isascii()
    assert not set("<>&") & set(as_script_data(text))
