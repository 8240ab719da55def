"""`rg-env report` where files are damaged, foreign or hostile: counted, escaped, or refused in one line."""

import base64
import contextlib
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from report_samples import (
    HOSTILE,
    Reader,
    evaluation_record,
    page_data,
    training_record,
    write_evaluation,
    write_lines,
    write_run,
)

from rg_env.errors import InputError
from rg_env.evaluation.report import rollouts as report_rollouts
from rg_env.evaluation.report import write_report
from rg_env.evaluation.report.html import as_script_data, render
from rg_env.evaluation.report.parts import Page, Rollouts


def test_damaged_lines_are_counted(tmp_path: Path, report: Callable[..., tuple[int, str, str]]) -> None:
    """In the page and on standard error; what is whole is shown, and no figure is made of the rest."""
    run = write_run(tmp_path / "run")
    with (run / "rollouts.jsonl").open("ab") as lines:
        lines.write(b'{"step": 5, "question"\n[1]\n\xff\xfe\n\n')
        lines.write(json.dumps(training_record(5, correct="yes")).encode() + b"\n")
        lines.write(json.dumps(training_record(5, reward=True)).encode() + b"\n")
        lines.write(json.dumps({"step": 5, "question": "no answer at all"}).encode() + b"\n")
        lines.write(b'{"question": 1' + b"0" * 5000 + b', "completion": ""}\n')
        lines.write(b'{"question": ' + b"[" * 100_000 + b"\n")
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 5, "reward": NaN, "accuracy": 0.5, "huge": 1e999}\n{"reward": 7}\n{"st')
    (run / "eval_results" / "eval_step_9.json").write_text('{"step": 9')
    code, _, errors = report(run)
    assert code == 0
    assert errors.splitlines() == [
        f"note: left out: {run / 'eval_results' / 'eval_step_9.json'} is damaged: "
        "Expecting ',' delimiter: line 1 column 11 (char 10); restore it from a copy, or remove it",
        "note: metrics.jsonl: 2 damaged lines left out",
        "note: rollouts.jsonl: 8 damaged rollouts left out",
    ]
    data = page_data(run / "report.html")
    assert [f"note: {note}" for note in data["notes"]] == errors.splitlines()
    assert data["metrics"]["values"]["reward"] == [[1, 2, 3, 4], [0.25, 0.5, 0.75, 1.0]]
    assert data["metrics"]["values"]["accuracy"][0] == [1, 2, 3, 4, 5]
    assert "huge" not in data["metrics"]["values"]
    assert data["rollouts"]["found"] == 28


def test_answers_of_other_environments_may_be_no_texts(tmp_path: Path) -> None:
    """They are shown as JSON has them, and nothing is extracted where rg_env did not grade."""
    write_lines(
        tmp_path / "rollouts.jsonl", [training_record(1, answer=[1, 2], completion="<answer>1</answer>", level=3)]
    )
    (record,) = page_data(write_report(tmp_path).file)["rollouts"]["records"]
    assert (record["answer"], record["level"], "extracted" in record) == ("[1, 2]", 3, False)


def test_nothing_to_report_is_one_line(tmp_path: Path, report: Callable[..., tuple[int, str, str]]) -> None:
    """And exit code 2, and no page."""
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.yaml").write_text("{}")
    (tmp_path / "bare").mkdir()
    (tmp_path / "started").mkdir()
    (tmp_path / "started" / "metrics.jsonl").write_text("nonsense\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "results_x.json").write_text('{"format": "rg_env.results/7"}')
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "rollouts.jsonl").write_text("\n{]\n")
    run = write_run(tmp_path / "run")
    for source, words in (
        ("absent", "does not exist"),
        ("bare", "holds neither a training run (metrics.jsonl, eval_results/) nor an evaluation"),
        ("sweep", "is a sweep: give the folder of one of its runs, or `rg-env compare"),
        ("started", "no metrics, evaluations or rollouts to show (metrics.jsonl: 1 damaged line left out)"),
        ("other", "is damaged: it is not results of this version: format must be one of"),
        ("none", "holds no rollouts (rollouts.jsonl: 1 damaged rollout left out)"),
        (run / "train_results.json", "is damaged: it is not results of this version"),
        (run / "rollouts.jsonl", "is of a training run: give its folder"),
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


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                [*report_rollouts._TEXTS, *report_rollouts._NAMES, *report_rollouts._WHOLE, "correct", "rewards"]
            ),
            st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.dictionaries(TEXTS, st.floats()),
        ),
        max_size=4,
    )
)
def test_any_record_is_shown_or_counted(records: list[dict[str, Any]]) -> None:
    """Whatever stands in its fields: the page can hold it, or it is damaged."""
    found = [report_rollouts.checked(record) for record in records]
    sources = [
        report_rollouts.Source("x", lambda: iter([r if r is None else r | {"source": "training"} for r in found]))
    ]
    gathered = report_rollouts.gather(sources, 100)
    shown, damaged = gathered.rollouts.records, sum(record is None for record in found)
    assert len(shown) + damaged == len(records)
    assert json.loads(as_script_data(shown)) == shown
    assert (gathered.notes == []) == (damaged == 0)


ODD = (None, True, 3, -1, 2**70, 1.5, 9e99, 1e101, "x", "", [], {}, [1], {"a": 1}, [None], {"n": None}, "\udc80", [[]])


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each value within a value."""
    yield place
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*place, key))


def replaced(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    if not place:
        return by
    changed = value.copy()
    changed[place[0]] = replaced(value[place[0]], place[1:], by)
    return changed


@pytest.mark.parametrize("seed", range(5))
def test_odd_values_anywhere_are_no_traceback(tmp_path: Path, seed: int) -> None:
    """Whatever stands in the place of a value, in any file: a page, whose data are JSON, or an error for people."""
    draw = random.Random(seed)
    run, folder = write_run(tmp_path / "run"), write_evaluation(tmp_path / "eval")
    names = ("metrics.jsonl", "rollouts.jsonl", "train_results.json")
    files = [run / name for name in names] + [folder / "rollouts.jsonl", *folder.glob("results_*.json")]
    for _ in range(60):
        file = draw.choice(files)
        text = file.read_text()
        lines = text.splitlines() if file.suffix == ".jsonl" else [text]
        number = draw.randrange(len(lines))
        values = json.loads(lines[number])
        lines[number] = json.dumps(replaced(values, draw.choice(list(places(values))), draw.choice(ODD)))
        file.write_text("\n".join(lines))
        with contextlib.suppress(InputError):
            page_data(write_report(run if file.is_relative_to(run) else folder).file)
        file.write_text(text)


def test_an_unreadable_file_is_said(tmp_path: Path) -> None:
    """A folder in the place of a file."""
    run = write_run(tmp_path / "run")
    (run / "eval_results" / "eval_step_7.json").mkdir()
    (note,) = write_report(run).notes
    assert note.endswith("eval_step_7.json cannot be read: Is a directory")
