"""Tests of the `rg-env plot` command: input files, options, new names and mistakes."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from report_samples import evaluated
from result_files import all_results, model_result, of_task, task_results

from rg_env.errors import InputError
from rg_env.evaluation.plots.files import new_names
from rg_env.evaluation.results import Results, TaskResults, merged

Run = Callable[..., tuple[int, str, str]]
Error = Callable[..., str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """Run each test in an empty working directory."""
    with contextlib.chdir(tmp_path):
        yield tmp_path


def write(name: str, results: TaskResults | Results) -> str:
    results = of_task(results) if isinstance(results, TaskResults) else results
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(results.model_dump_json(indent=2), encoding="utf-8")
    return name


def write_run(name: str, reward: float = 0.5, problems: int = 0) -> str:
    """Write a run's metrics and, with `problems`, an evaluation on that many problems."""
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [{"step": 0, "eval/accuracy": 0.1}, {"step": 1, "reward": reward}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if problems:
        write(f"{file.parent}/eval_results/eval_step_0.json", evaluated(0, [[True, False]] * (problems + 1)))
    return name


def shown(words: list[str], file: str = "p.svg") -> list[str]:
    """Return those of `words` that are texts in the plot, in the plot's order."""
    text = Path(file).read_text()
    return sorted((word for word in words if f">{word}</text>" in text), key=lambda word: text.index(f">{word}</text>"))


def test_the_plot_is_next_to_the_first_file(rg_env: Run) -> None:
    """An existing file is replaced."""
    one, other = write("eval/results_maze_1.json", task_results({"a": 0.5})), write("b.json", task_results({"b": 0.5}))
    plot, plots = Path(one).with_suffix(".png"), []
    for files in ([one, other], [one]):
        assert rg_env("plot", *files) == (0, f"{plot}\n", "")
        plots.append(plot.read_bytes())
        assert plots[-1].startswith(b"\x89PNG")
    assert plots[0] != plots[1]


def test_options_change_what_is_drawn(rg_env: Run) -> None:
    """Options set the title, new names and the file format."""
    file = write("r.json", task_results({"a": 0.5, "b=1": 0.5, "c": 0.5}))
    assert rg_env("plot", file, "--title", "My title", "--rename", "a=first", "b=1=second", "--output", "p.svg") == (
        0, "p.svg\n", "")  # fmt: skip
    assert sorted(shown(["My title", "first", "second", "c", "maze", "a", "b=1"])) == [
        "My title", "c", "first", "maze", "second"]  # fmt: skip
    assert rg_env("plot", file, "--output", "p.pdf")[0] == 0
    assert Path("p.pdf").read_bytes().startswith(b"%PDF")
    assert rg_env("plot", write("odd.json", task_results({"模型 \U0001f600": 0.5})), "--title", "\udce4\x00 t")[0] == 0


def test_a_folder_can_be_given_instead_of_its_files(rg_env: Run) -> None:
    """For a run, the metrics are plotted; for an evaluation, its newest results."""
    write_run("run/metrics.jsonl", problems=3)
    task = task_results({"a": 0.5})
    write("both/results_maze_1.json", task)
    write("both/results_all_tasks_1.json", all_results([task]))
    new = all_results([task_results({"b": 0.25})], created="2025-01-01T13:00:00+00:00")
    write("both/results_all_tasks_2.json", new)
    for folder, plot, texts in (
        ("run", "run/metrics.png", set()),
        ("both", "both/results_all_tasks_2.png", {"b", "maze"}),
    ):
        assert rg_env("plot", folder) == (0, f"{plot}\n", "")
        assert rg_env("plot", folder, "--output", "p.svg")[0] == 0
        assert {*shown(["b", "maze", "gcd"])} == texts


def test_runs_are_named_by_their_folders_and_ordered_by_their_numbers(rg_env: Run) -> None:
    """A run's label is the shortest unique part of its path; a file given twice counts as one run."""
    names = ["x/lr=0.0001/metrics.jsonl", "y/lr=0.0001/metrics.jsonl", "x/lr=3e-05/metrics.jsonl", "x/own.jsonl"]
    files = [write_run(name) for name in names]
    renamed = ["--rename", "own.jsonl=mine"]
    code, _, notes = rg_env("plot", *files, "./x/lr=3e-05/metrics.jsonl", "--output", "p.svg", *renamed)
    assert code == 0
    assert shown(["4 runs", "mine", "lr=3e-05", "x/lr=0.0001", "y/lr=0.0001"]) == [
        "lr=3e-05", "mine", "x/lr=0.0001", "y/lr=0.0001", "4 runs"]  # fmt: skip
    assert notes.startswith("note: lr=3e-05, mine, x/lr=0.0001 and 1 more: no intervals are shown, and it is not")


def write_config(run: str, rate: float, seed: int) -> str:
    file = write_run(f"{run}/metrics.jsonl", seed)
    Path(run, "config.yaml").write_text(
        f"seed: {seed}\ntraining: {{learning_rate: {rate}, seed: {seed}}}\noutput: {{dir: {run}}}\n"
    )
    return file


def test_runs_are_averaged_by_setting(rg_env: Run, error_of: Error) -> None:
    """Without keys, all that differ count, except seeds and folders. A sweep's folder stands for its runs."""
    for rate in (3e-05, 1e-04):
        for seed in range(3):
            write_config(f"sweep/{rate}-{seed}", rate, seed)
    Path("sweep/sweep.yaml").touch()
    for keys in ([], ["training.learning_rate"]):
        assert rg_env("plot", "sweep", "--output", "p.svg", "--group", *keys)[0] == 0
        words = ["learning_rate=3e-5 (3 runs)", "learning_rate=1e-4 (3 runs)", "6 runs"]
        assert shown(words) == words
    assert rg_env("plot", "sweep", "--output", "p.svg", "--group", "seed", "--rename", "seed=0=first")[0] == 0
    assert shown(["first (2 runs)", "seed=2 (2 runs)"]) == ["first (2 runs)", "seed=2 (2 runs)"]
    assert "unknown config key 'training.learning_rat': did you mean" in error_of(
        "plot", "sweep", "--group", "training.learning_rat"
    )
    write_config("sweep/other", 1e-5, 0)
    Path("sweep/other/config.yaml").write_text(
        "tasks: {other_task: {config: {least_number: 1, greatest_number: 2}, weight: 2.0}}\n"
    )
    assert rg_env("plot", "sweep", "--output", "p.svg", "--group")[0] == 0  # the run is named: its settings are long
    assert shown(["other", "7 runs"]) == ["other", "7 runs"]
    file = write("r.json", task_results({"a": 0.5}))
    assert "--group averages training runs, but r.json contains results" in error_of("plot", file, "--group")
    assert "cannot be read: No such file" in error_of("plot", "missing.json", "--group")
    assert "is not WIDTHxHEIGHT in inches" in error_of("plot", "sweep", "--size", "6,5x3")


def test_runs_that_were_not_evaluated_alike_are_labeled(rg_env: Run) -> None:
    """The labels have the numbers of questions, and a note says that the accuracies are not comparable. Both disappear
    once the questions are the same."""
    files = [write_run(f"{count}/metrics.jsonl", problems=count) for count in (3, 5)]
    code, _, notes = rg_env("plot", *files, "--output", "p.svg")
    assert (code, notes.count("\n")) == (0, 1)
    assert notes.startswith("note: accuracies are not comparable, because the runs were evaluated on different")
    assert shown(["3 (3 questions)", "5 (5 questions)", "optimizer step (shaded: 95% intervals)"])[-2:] == [
        "3 (3 questions)", "5 (5 questions)"]  # fmt: skip
    assert "accuracies are not comparable" in Path("p.svg").read_text()
    write_run("5/metrics.jsonl", problems=3)
    assert rg_env("plot", *files, "--output", "p.svg") == (0, "p.svg\n", "")
    assert shown(["3", "5"]) == ["3", "5"]


def test_all_files_of_an_evaluation_give_one_plot(rg_env: Run) -> None:
    """The plot is the same with or without the results file of all tasks, including the macro averages."""
    accuracies = {"maze": {"a": 0.25, "b": 0.5}, "gcd": {"a": 0.75, "b": 1.0}}
    tasks = [task_results(models, task) for task, models in accuracies.items()]
    files = [write(f"results_{task.task}_1.json", task) for task in tasks]
    every = write("results_all_tasks_1.json", all_results(tasks))
    for given in ([*files, every], [every, *files], files):
        assert rg_env("plot", *given, "--output", "p.svg")[0] == 0
        assert shown(["macro average", "maze", "gcd", "2 tasks"]) == ["macro average", "gcd", "maze", "2 tasks"]
        assert ">0.500 [" in Path("p.svg").read_text()
        assert ">0.750 [" in Path("p.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("none.json", "none.json cannot be read: No such file or directory"),
        ("run.png", "run.png contains neither a training run (metrics.jsonl, eval_results/) nor an evaluation"),
        ("odd.svg --output ./odd.svg", "odd.svg is one of the input files: choose another name for the plot"),
        ("half.json", "half.json is damaged: "),
        ("list.json", "list.json is not a results file from rg-env eval (results_*.json)\n"),
        ("new.json", "new.json is damaged: its contents do not match the current results format: format"),
        ("zero.json", "zero.json has no answers"),
        ("a.json run/metrics.jsonl", "run/metrics.jsonl contains training metrics, but a.json contains results: plot"),
        ("b.json all.json", "b.json cannot be compared with all.json: only all.json has the task 'gcd'"),
        ("a.json again.json", "a.json both have a model 'a', with different results"),
        ("a.json --output a.jpg", "a.jpg must end in .png, .svg or .pdf"),
        ("a.json --output no/a.png", "cannot write no/a.png: the folder no does not exist or was removed"),
        ("a.json --rename aa=b", "unknown model 'aa': "),
        ("run/metrics.jsonl --rename rum=b", "unknown run 'rum': did you mean 'run'?"),
        ("a.json --rename a=", "but '' is empty"),
        ("a.json b.json --rename a=b", "but 'b' is empty or used more than once"),
        ("a.json b.json --rename a=x b=x", "but 'x' is empty or used more than once"),
        ("--rename a=b a.json", "the following arguments are required: FILE"),
        ("a.json --rename a=b b.json", "--rename b.json: pass it as OLD=NEW (files come before the options"),
    ],
)
def test_mistakes_are_one_line(arguments: str, message: str, error_of: Error, folder: Path) -> None:
    """Each mistake exits with code 2 and does not write or change any file."""
    write("a.json", task_results({"a": 0.5}))
    write("b.json", task_results({"b": 0.5}))
    write("again.json", task_results({"a": 0.75}))
    write("all.json", all_results([task_results({"a": 0.5}, task) for task in ("maze", "gcd")]))
    write("zero.json", task_results({"a": model_result(0, 0)}))
    texts = {"odd.svg": "{}", "half.json": '{"format": "rg_', "list.json": "[]"}
    texts["new.json"] = Path("a.json").read_text().replace("evaluation/2", "evaluation/3")
    for name, text in texts.items():
        Path(name).write_text(text)
    write_run("run/metrics.jsonl")
    Path("run.png").mkdir()
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert message in error_of("plot", *arguments.split())
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_a_damaged_file_is_one_error(error_of: Error) -> None:
    """`rg-env plot` and `rg-env report` report the same error, also for non-finite values."""
    text = all_results([task_results({"a": 0.5})]).model_dump_json()
    for damage in (text[:-9], text.replace('"reward":0.5', '"reward":NaN', 1)):
        assert damage != text
        Path("r.json").write_text(damage)
        for arguments in (("plot", "r.json", "--output", "x.png"), ("report", "r.json")):
            reason = "its contents do not match the current results format: "
            assert error_of(*arguments).startswith(f"error: r.json is damaged: {reason}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompts_sha256": "x" * 64}, f"different questions.prompts_sha256: {'x' * 24}..., not p-maze"),
        ({"temperature": 0.5}, "different sampling.temperature: 0.5, not 1.0"),
        ({"grading": "upstream"}, "different grading: upstream, not hardened"),
        ({"system_prompt": "Guess."}, "different system_prompt: Guess., not Think."),
        ({"spec": {"name": "gcd"}}, "different spec.name: gcd, not maze"),
        ({"floor": 0.5}, "different floor: 0.5, not 0.25"),
    ],
    ids=str,
)
def test_models_that_were_evaluated_differently_are_not_compared(change: dict[str, Any], reason: str) -> None:
    one, other = (all_results([task_results({"a": 0.5}, "gcd"), task_results({"a": 0.5}, **more)])
                  for more in ({}, change))  # fmt: skip
    with pytest.raises(InputError) as raised:
        merged({"x.json": one, "y.json": other})
    assert str(raised.value) == f"y.json cannot be compared with x.json on 'maze': {reason}"


def test_each_model_of_all_files_is_listed_once() -> None:
    """Models are listed in the order of the files."""
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
        (["base=a", "base=Base = 1"], {"base": "Base = 1"}),
        (["lr=1e-5_seed=0=a=b"], {"lr=1e-5_seed=0": "a=b"}),
        (["base=lr=1e-5", "lr=1e-5=base"], {"base": "lr=1e-5", "lr=1e-5": "base"}),
        (["base=lr=1e-5", "lr=1e-5=c"], {"base": "lr=1e-5", "lr=1e-5": "c"}),
    ],
)
def test_names_may_contain_equals_signs_and_swap(typed: list[str], expected: dict[str, str]) -> None:
    assert new_names(typed, KNOWN, "run") == {name: name for name in KNOWN} | expected


def test_a_matplotlibrc_cannot_run_latex(rg_env: Run) -> None:
    """Matplotlib reads the file from the working directory, which may have been downloaded."""
    with matplotlib.rc_context({"text.usetex": True}):
        assert rg_env("plot", write("a.json", task_results({"a": 0.5})))[::2] == (0, "")
