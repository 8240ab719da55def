"""`rg-env plot` as it is typed: what is drawn, which files belong together, other names, and mistakes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from result_files import all_results, model_result, of_task, task_results

from rg_env.errors import InputError, install_command
from rg_env.evaluation.plots.files import merged, new_names
from rg_env.evaluation.results import Results, TaskResults

Run = Callable[..., tuple[int, str, str]]
PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def as_text() -> Iterator[None]:
    """Words in SVG files are words."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        yield


def write(name: str, results: TaskResults | Results) -> str:
    results = of_task(results) if isinstance(results, TaskResults) else results
    Path(name).write_text(results.model_dump_json(indent=2), encoding="utf-8")
    return name


def write_run(name: str, reward: float = 0.5) -> str:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [{"step": 0, "eval/accuracy": 0.1}, {"step": 1, "reward": reward}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def test_the_picture_stands_beside_the_first_file(rg_env: Run) -> None:
    """Of one task, of all, and of runs; written over when it is asked for again."""
    Path("eval").mkdir()
    one = write("eval/results_maze_1.json", task_results({"a": 0.5, "b": 0.25}))
    other = write("results_maze_2.json", task_results({"c": 0.5}))
    every = write("eval/results_all_tasks_1.json", all_results([task_results({"a": 0.5}, t) for t in ("maze", "gcd")]))
    curves = [write_run(f"outputs/run-{number}/metrics.jsonl") for number in range(3)]
    for files in ([one, other], [every], curves, [one]):
        picture = Path(files[0]).with_suffix(".png")
        before = picture.read_bytes() if picture.exists() else b""
        assert rg_env("plot", *files) == (0, f"{picture}\n", "")
        assert picture.read_bytes().startswith(PNG)
        assert picture.read_bytes() != before  # at last without the model of the other file


def test_options_change_what_is_drawn(rg_env: Run, as_text: None) -> None:
    """Title, names typed and from a file, and the kind of picture."""
    file = write("r.json", task_results({"a": 0.5, "b=1": 0.25, "c": 0.125}))
    Path("names.json").write_text('{"c": "third"}')
    renames = ["--rename", "a=first", "b=1=second", "--rename-file", "names.json"]
    assert rg_env("plot", file, "--title", "My title", *renames, "--output", "p.svg") == (0, "p.svg\n", "")
    text = Path("p.svg").read_text()
    assert all(f">{word}</text>" in text for word in ("My title", "first", "second", "third"))
    assert not any(f">{word}</text>" in text for word in ("maze", "a", "b=1", "c"))
    run = write_run("outputs/seed=0/metrics.jsonl")
    runs = [run, write_run("outputs/seed=1/metrics.jsonl")]
    assert rg_env("plot", *runs, "--rename", "seed=0=none", "--output", "p.svg")[0] == 0
    assert all(f">{word}</text>" in Path("p.svg").read_text() for word in ("2 runs", "none", "seed=1"))
    assert rg_env("plot", file, "--output", "p.pdf")[0] == 0
    assert Path("p.pdf").read_bytes().startswith(b"%PDF")


def test_runs_are_named_by_their_folders(rg_env: Run, as_text: None) -> None:
    """As much of the path as tells them apart; a file given twice is one run."""
    names = ["x/run/metrics.jsonl", "y/run/metrics.jsonl", "x/other/metrics.jsonl", "x/own.jsonl"]
    files = [write_run(name) for name in names]
    assert rg_env("plot", *files, "./x/run/metrics.jsonl", "--output", "p.svg")[0] == 0
    text = Path("p.svg").read_text()
    assert all(f">{word}</text>" in text for word in ("4 runs", "x/run", "y/run", "other", "own.jsonl"))


def test_names_that_the_font_lacks_are_no_mistake(rg_env: Run) -> None:
    file = write("r.json", task_results({"模型 \U0001f600": 0.5}))
    assert rg_env("plot", file, "--title", "\udce4\x00 t")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.json"], "none.json cannot be read: No such file or directory"),
        (["."], ". is a folder: give the files in it, such as metrics.jsonl of a run"),
        (["odd.svg", "--output", "./odd.svg"], "odd.svg is one of the files: give the plot another name with --output"),
        (["empty.json"], "empty.json is damaged: "),
        (["empty.jsonl"], "empty.jsonl is empty: the run has not logged anything yet"),
        (["half.json"], "half.json is damaged: "),
        (["new.json"], "new.json is damaged: it is not results of this version: format"),
        (["zero.json"], "zero.json has no answers"),
        (["a.json", "run/metrics.jsonl"], "run/metrics.jsonl has metrics of a run and a.json results: they do not"),
        (["run/metrics.jsonl", "a.json"], "run/metrics.jsonl has metrics of a run and a.json results: they do not"),
        (["a.json", "all.json"], "all.json cannot be compared with a.json: only all.json has the task 'gcd'"),
        (
            ["a.json", "asked.json"],
            "asked.json cannot be compared with a.json on 'maze': other questions: seed is 1, not 0",
        ),
        (["a.json", "again.json"], "a.json both have a model 'a', with different results"),
        (["a.json", "--output", "a.jpg"], "a.jpg must end in .png, .svg or .pdf"),
        (["a.json", "--output", "a"], "a must end in .png, .svg or .pdf"),
        (["a.json", "--output", "no/a.png"], "cannot write no/a.png: No such file or directory"),
        (["a.json", "--output", "run.png"], "cannot write run.png: Is a directory"),
        (["a.json", "--rename", "aa=b"], "--rename aa=b: unknown model 'aa': "),
        (["all.json", "--rename", "x=b"], "--rename x=b: unknown model 'x': there are: a"),
        (["run/metrics.jsonl", "--rename", "rum=b"], "--rename rum=b: unknown run 'rum': did you mean 'run'?"),
        (["two.json", "--rename", "a=b"], "'a' and 'b' would both be 'b'"),
        (["a.json", "--rename-file", "none.json"], "--rename-file none.json cannot be read: No such file or directory"),
        (["--rename", "a=b", "a.json"], "the following arguments are required: FILE"),
        (
            ["a.json", "--rename", "a=b", "two.json"],
            "--rename two.json: give it as OLD=NEW (files come before the options)",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line(arguments: list[str], message: str, rg_env: Run, folder: Path) -> None:
    """With the exit code 2, and without a picture."""
    write("a.json", task_results({"a": 0.5}))
    write("again.json", task_results({"a": 0.75}))
    write("asked.json", task_results({"b": 0.5}, seed=1))
    write("two.json", task_results({"a": 0.5, "b": 0.5}))
    write("all.json", all_results([task_results({"a": 0.5}, task) for task in ("maze", "gcd")]))
    write_run("run/metrics.jsonl")
    for name in ("empty.json", "empty.jsonl"):
        Path(name).touch()
    whole = Path("a.json").read_text()
    for name, text in {
        "odd.svg": whole,
        "half.json": whole[: len(whole) // 2],
        "new.json": whole.replace("evaluation/1", "evaluation/2"),
        "zero.json": of_task(task_results({"a": model_result(0.5, n=0)})).model_dump_json(),
    }.items():
        Path(name).write_text(text)
    Path("run.png").mkdir()
    code, out, errors = rg_env("plot", *arguments)
    assert (code, out) == (2, "")
    assert message in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert errors.startswith(("error: ", "usage: "))
    assert errors.count("\n") == 1 or errors.startswith("usage: ")
    assert not [file for file in folder.rglob("*") if file.suffix in (".png", ".jpg") and file.is_file()]


def test_a_missing_extra_is_one_line_and_options_load_nothing() -> None:
    """What draws is imported when something is to be drawn."""
    code = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "matplotlib" else find(name, *more)
from rg_env.cli.main import run
from rg_env.commands import run_command
try:
    run_command(lambda: run(["plot", "nowhere.json"]))
finally:
    print(sorted({"matplotlib", "pydantic", "torch", "reasoning_gym", "verifiers"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    remedy = f"`{install_command('eval')}`, or `uv sync` in a clone"
    assert done.stderr == f"error: this needs matplotlib, which is not installed: {remedy}\n"
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompts_sha256": "x" * 64}, f"other questions: prompts_sha256 is {'x' * 24}..., not p-maze"),
        ({"n": 30}, "other questions: n is 30, not 20"),
        ({"temperature": 0.5}, "other sampling: temperature is 0.5, not 1.0"),
        ({"grading": "upstream"}, "other grading: upstream, not hardened"),
        ({"system_prompt": "Guess."}, "other system_prompt: Guess., not Think."),
        ({"spec": {"name": "gcd"}}, "other spec: {'name': 'gcd'}, not {'name': 'maze'}"),
        ({"floor": 0.5}, "other floor: 0.5, not 0.25"),
    ],
    ids=str,
)
def test_models_that_were_evaluated_differently_are_not_compared(change: dict[str, Any], reason: str) -> None:
    one, other = (all_results([task_results({"a": 0.5}, "gcd"), task_results({"a": 0.5}, **more)])
                  for more in ({}, change))  # fmt: skip
    with pytest.raises(InputError) as raised:
        merged({"x.json": one, "y.json": other})
    assert str(raised.value) == f"y.json cannot be compared with x.json on 'maze': {reason}"


def test_models_of_all_files_are_there_once() -> None:
    """In the order of the files."""
    files = [all_results([task_results(dict.fromkeys(names, 0.5), task) for task in ("maze", "gcd")])
             for names in ("ba", "a", "ca")]  # fmt: skip
    results = merged({str(number): each for number, each in enumerate(files)})
    assert list(results.models) == [*"bac"]
    assert {name: list(task.models) for name, task in results.tasks.items()} == {"maze": [*"bac"], "gcd": [*"bac"]}


KNOWN = ["base", "outputs/run/checkpoint-100", "lr=1e-5_seed=0", "lr=1e-5"]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ([], {}),
        (["base=Base = 1", "base=Base = 1"], {"base": "Base = 1"}),
        (["lr=1e-5_seed=0=first"], {"lr=1e-5_seed=0": "first"}),
        (["lr=1e-5_seed=0=a=b"], {"lr=1e-5_seed=0": "a=b"}),
        (["base=lr=1e-5", "lr=1e-5=base"], {"base": "lr=1e-5", "lr=1e-5": "base"}),
        (["base=lr=1e-5", "lr=1e-5=c"], {"base": "lr=1e-5", "lr=1e-5": "c"}),
    ],
)
def test_names_may_contain_equals_signs_and_swap(typed: list[str], expected: dict[str, str]) -> None:
    assert new_names(typed, None, KNOWN, "run") == expected


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["lr=1e-5_sed=0=x"], "--rename lr=1e-5_sed=0=x: unknown model 'lr=1e-5_sed=0': did you mean 'lr=1e-5_seed=0'"),
        (["=b"], "--rename =b: unknown model ''"),
        (["lr=1e-5_seed=0=x", "lr=1e-5=base=y", "base"], "--rename base: give it as OLD=NEW"),
        (["base= "], "the new name of 'base' is empty"),
        (["base=a", "base=b"], "--rename base=b: 'base' is already renamed to 'a'"),
        (["base=lr=1e-5"], "'base' and 'lr=1e-5' would both be 'lr=1e-5': the names in a plot must differ"),
        (["base=x", "outputs/run/checkpoint-100=x"], "'base' and 'outputs/run/checkpoint-100' would both be 'x'"),
    ],
)
def test_wrong_names_are_refused(typed: list[str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        new_names(typed, None, KNOWN, "model")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_name_that_can_mean_two_is_refused() -> None:
    with pytest.raises(InputError, match="can mean the model 'a' or 'a=b'; use --rename-file"):
        new_names(["a=b=c"], None, ["a", "a=b"], "model")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON: "),
        ("[" * 100_000, "is not JSON: "),
        ('{"base": "x", "base": "y"}', "is not JSON: it has a key twice"),
        ("[]", 'must have new names by old ones: {"OLD": "NEW"}'),
        ('{"base": 3}', "must have new names by old ones"),
        ('{"bse": "x"}', "unknown model 'bse': did you mean 'base'?"),
    ],
)
def test_mistakes_in_the_file_of_names_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    file.write_text(text)
    with pytest.raises(InputError) as raised:
        new_names([], file, KNOWN, "model")
    assert str(raised.value).startswith(f"--rename-file {file}")
    assert message in str(raised.value)
