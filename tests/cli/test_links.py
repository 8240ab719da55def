"""Commands in a folder full of links, such as an archive from a stranger may contain: no file outside is changed."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer
from report_samples import write_run

from rg_env.core.files import make_folder, opened_to_append, remove_partial, write_aside, written_aside
from rg_env.core.run_folder import RunFolder
from rg_env.errors import InputError, OutputFolderError

Run = Callable[..., tuple[int, str, str]]
SWEEP_RESULTS = {"steps": 20, "interrupted": False, "error": None, "eval_before": None, "eval_after": None}


@pytest.fixture(scope="module")
def chat() -> Iterator[ChatServer]:
    with ChatServer(str) as server:
        yield server


def prepare_run(folder: Path, url: str) -> list[list[str]]:
    write_run(folder)
    return [["report", str(folder)], ["plot", f"{folder}/metrics.jsonl"]]


def prepare_evaluation(folder: Path, url: str) -> list[list[str]]:
    models = json.dumps({"a": {"model": "m", "url": url}})
    given = [f"models={models}", "tasks=gcd", "num_examples=2", f"output.dir={folder}"]
    return [["eval", *given, *(["--resume"] if folder.exists() else [])], ["report", str(folder)]]


def prepare_sweep(folder: Path, url: str) -> list[list[str]]:
    write_run(folder / "seed=1")
    (folder / "seed=1" / "train_results.json").write_text(json.dumps(SWEEP_RESULTS))
    (folder / "sweep.yaml").write_text(json.dumps({"points": {"seed=1": {"seed": 1}}}))
    return [["compare", str(folder)]]


def prepare_script(folder: Path, url: str) -> list[list[str]]:
    folder.mkdir()
    config = Path(__file__).parents[2] / "configs/train/tiny.yaml"
    return [["slurm", str(config), "--output", f"{folder}/job", "--force", "--gpus=1", "--time=1:0"]]


PREPARE = {
    each.__name__.removeprefix("prepare_"): each
    for each in (prepare_run, prepare_evaluation, prepare_sweep, prepare_script)
}


@pytest.mark.parametrize("name", PREPARE)
def test_no_command_writes_through_a_link(name: str, chat: ChatServer, rg_env: Run, tmp_path: Path) -> None:
    """Links to files outside are at the names of all files that the commands write. The commands replace a link, or
    refuse it if they would read the file or append to it."""
    prepare, run = PREPARE[name], tmp_path / "run"
    commands = prepare(run, chat.url)
    for command in commands:
        assert rg_env(*command)[0] == 0
    clean = run.rename(tmp_path / "clean")
    fixed = [each.relative_to(clean) for each in clean.rglob("*") if not re.search(r"_\d{8}-\d{6}", each.name)]
    appended = [path for path in fixed if name == "evaluation" and path.name == "rollouts.jsonl"]
    replaced = [path for path in fixed if path not in appended and not (clean / path).is_dir()]
    assert replaced
    outputs = [path for path in replaced if re.search(r"[.](html|png|md)$|comparison|job", path.name)]
    read = [path for path in replaced if path not in outputs]
    parts = [path.with_name(f"{path.name}.part") for path in replaced]
    for paths in filter(None, [[*outputs, *parts], read, appended]):
        shutil.copytree(clean, run)
        (outside := tmp_path / "outside").mkdir()
        for path in paths:
            goal, link = outside / "_".join(path.parts), run / path
            link.rename(goal) if link.exists() else goal.write_text("precious")
            link.symlink_to(goal)
        before = {file: file.read_bytes() for file in outside.iterdir()}
        for command in prepare(run, chat.url) if name == "evaluation" else commands:
            code, _, error = rg_env(*command)
            is_refused = paths == appended or (paths == read and (name, command[0]) != ("evaluation", "report"))
            assert (code, error.count("\n")) == ((2, 1) if is_refused else (0, error.count("\n"))), error
        assert {file: file.read_bytes() for file in outside.iterdir()} == before
        shutil.rmtree(run)
        shutil.rmtree(outside)


SECRET = "of-somebody-else"
ROW = {"task": "gcd", "question": SECRET, "answer": "1", "reply": SECRET, "step": 1, "model": "m", "completion": "1"}
READS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    **{f"run/{name}": (write_run, ["report"]) for name in (
        *("config.yaml", "arguments.yaml", "manifest.json", "train_results.json", "metrics.jsonl", "rollouts.jsonl"),
        *("eval_results", "eval_results/eval_step_9.json"),
    )},
    "run/metrics.jsonl ": (write_run, ["plot"]),
    "run/results_all_tasks_20250101-120000.json": (Path.mkdir, ["report"]),
    "run/results_all_tasks_20250101-120000.json ": (Path.mkdir, ["plot"]),
    "run/seed=1": (lambda run: prepare_sweep(run, ""), ["compare"]),
    "run/sweep.yaml": (lambda run: prepare_sweep(run, ""), ["compare"]),
    "run/logs/seed=1.failed": (lambda run: (prepare_sweep(run, ""), (run / "seed=1/train_results.json").unlink()),
                               ["compare"]),
    "run/replies.jsonl": (Path.mkdir, ["score", "--output-dir", "scores"]),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("kind", ["file", "device", "pipe"])
def test_no_command_reads_through_a_link(
    name: str, kind: str, rg_env: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's folder has a link to a private file, or a file without an end, where a command reads."""
    monkeypatch.chdir(tmp_path)
    build, (command, *more) = READS[name]
    path, goal = tmp_path / name.strip(), tmp_path / "private"
    build(tmp_path / "run")
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.move(path, goal)
    else:
        path.unlink(missing_ok=True)
        goal.write_text(f"{json.dumps(ROW)}\n")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(goal if kind == "file" else "/dev/zero")
    code, printed, error = rg_env(command, "run", *more)
    assert (code, error.count("error: ")) == (2, 1) or (kind != "file" and code == 0), error
    files = [file for file in tmp_path.rglob("*") if file.is_file() and not file.is_symlink() and file != goal]
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    assert SECRET not in printed


def test_no_report_is_written_to_a_linked_run(rg_env: Run, tmp_path: Path) -> None:
    """A folder of runs contains a link to the user's own run."""
    own = write_run(tmp_path / "own")
    (own / "report.html").write_text("mine")
    write_run(tmp_path / "runs/one\udcff")  # not UTF-8
    (tmp_path / "runs/two").symlink_to(own)
    for command in ("report", "plot"):
        assert rg_env(command, tmp_path / "runs")[0] == (0 if command == "report" else 2)
    assert (own / "report.html").read_text() == "mine"
    assert "./one%FF/report.html" in (tmp_path / "runs/report.html").read_text()
    assert not (own / "metrics.png").exists()


@pytest.mark.parametrize("point", ["../private", "/private", ".", "a/b", "a\x00"])
def test_points_of_a_sweep_are_in_its_folder(point: str, rg_env: Run, tmp_path: Path) -> None:
    prepare_sweep(tmp_path / "run", "")
    (tmp_path / "run/sweep.yaml").write_text(json.dumps({"points": {point: {"seed": 1}}}))
    code, _, error = rg_env("compare", tmp_path / "run")
    assert (code, error.count("\n"), "is not the name of a run" in error) == (2, 1, True)


def test_a_run_of_a_sweep_is_not_a_link_to_elsewhere(rg_env: Run, tmp_path: Path) -> None:
    """The error names the link, not sweep.yaml."""
    prepare_sweep(tmp_path / "run", "")
    (tmp_path / "run/sweep.yaml").write_text(json.dumps({"points": {"one": {"seed": 1}}}))
    (tmp_path / "run/one").symlink_to(write_run(tmp_path / "own"))
    code, _, error = rg_env("compare", tmp_path / "run")
    assert (code, error.count("\n")) == (2, 1)
    assert f"{tmp_path / 'run/one'} is a link out of the sweep's folder: replace it with a copy" in error


def test_damaged_sweeps_are_one_line(rg_env: Run, tmp_path: Path) -> None:
    results, points = "run/seed=1/train_results.json", {"seed=1": {"x": 1}, "two": {"y": 2}}
    for name, values in {"run/sweep.yaml": {"points": points}, results: {"steps": "x", "eval_after": 5}}.items():
        prepare_sweep(tmp_path / "run", "")
        (tmp_path / name).write_text(json.dumps(values))
        for command in ("compare", "report"):
            code, _, error = rg_env(command, tmp_path / "run")
            assert (code, error.count("\n"), "is damaged: a value" in error) == (2, 1, True), error
        shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_files_without_an_end_are_one_line(kind: str, rg_env: Run, tmp_path: Path) -> None:
    """Configs, replies, data and manifests that are pipes or devices are not read."""
    for name in ("a.yaml", "a.jsonl", "a.json", "a.csv"):
        if kind == "device":
            (tmp_path / name).symlink_to("/dev/zero")
        else:
            os.mkfifo(tmp_path / name)
    tiny = ("train", Path(__file__).parents[2] / "configs/train/tiny.yaml", "--dry-run")
    commands: list[tuple[Any, ...]] = [("train", "a.yaml"), ("eval", "a.yaml")]
    commands += [("score", f"a.{end}") for end in ("jsonl", "json", "csv")]
    commands += [(*tiny, f"data.path={tmp_path}/a.jsonl", "tasks=null"), (*tiny, f"splits.manifest={tmp_path}/a.json")]
    for command, path, *more in commands:
        code, _, error = rg_env(command, path if more else tmp_path / path, *more)
        assert (code, error.count("error: "), "it is not a regular file" in error) == (2, 1, True), error


def test_long_paths_are_one_line(rg_env: Run) -> None:
    for command in ("report", "plot", "compare", "score", "export"):
        code, _, error = rg_env(command, "x" * 5000)
        assert (code, error.count("error: ")) == (2, 1), error


WRITES: dict[str, Callable[[RunFolder], Any]] = {
    "config.yaml": lambda run: run.write_config({"seed": 1}),
    "arguments.yaml": lambda run: run.write_config({}, {"seed": 1}),
    "manifest.json": lambda run: run.write_manifest(None),
    "metrics.jsonl": lambda run: (run.cut_after(0), run.add_metrics(1, {})),
    "rollouts.jsonl": lambda run: (run.cut_after(0), run.add_rollouts(1, [{}])),
    "eval_results": lambda run: (RunFolder.create(run.path), run.write_evaluation(1, {})),
    "eval_results ": lambda run: run.cut_after(0),
    "eval_results/eval_step_1.json": lambda run: run.write_evaluation(1, {}),
    "eval_results/eval_step_2.json": lambda run: run.cut_after(1),
    "train_results.json": lambda run: run.write_results({}),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("kind", ["link", "relative link", "broken link", "hard link", "pipe"])
def test_a_run_does_not_write_through_a_link(name: str, kind: str, tmp_path: Path) -> None:
    """Training resumes in a folder with links at the names of its files."""
    outside, run = tmp_path / "outside", RunFolder(tmp_path / "run")
    path = run.path / name.strip()
    is_folder, victim = path.name == "eval_results", outside / "eval_step_2.json"
    outside.mkdir()
    path.parent.mkdir(parents=True)
    victim.write_text('{"step": 1}\n')
    if kind.endswith("link") and kind != "hard link":
        goal = outside if is_folder else victim
        goal = outside / "new" if kind == "broken link" else goal
        path.symlink_to(Path("..") / goal.relative_to(tmp_path) if kind[0] == "r" and path.parent == run.path else goal)
    elif is_folder:
        return
    elif kind == "hard link":
        path.hardlink_to(victim)
    else:
        os.mkfifo(path)
    with contextlib.suppress(OutputFolderError, InputError):
        WRITES[name](run)
        assert not is_folder
    assert {file.name: file.read_text() for file in outside.iterdir()} == {victim.name: '{"step": 1}\n'}


def test_files_are_written_aside(tmp_path: Path) -> None:
    """A failed write keeps the old file and leaves no other; what a killed process left is removed later."""
    file = tmp_path / ("n" * 255)
    write_aside(file, "a\ud800")
    assert file.read_bytes() == b"a\\ud800"
    (tmp_path / f".x.{'a' * 16}.part").touch()
    with contextlib.suppress(KeyboardInterrupt), written_aside(file) as aside:
        aside.write(b"half")
        raise KeyboardInterrupt
    assert file.read_bytes() == b"a\\ud800"
    remove_partial(tmp_path)
    assert [*tmp_path.iterdir()] == [file]
    (tmp_path / "to").symlink_to(tmp_path)  # the user's own path
    write_aside(tmp_path / "to" / "other", "1")
    with opened_to_append(tmp_path / "to" / "other") as lines:
        lines.write(b"2")
    assert (tmp_path / "other").read_text() == "12"
    with pytest.raises(OutputFolderError, match=r"^\S+/to is a link or a special file"):
        make_folder(tmp_path / "to")
    with pytest.raises(OutputFolderError, match=r"the folder .*no does not exist or was removed"):
        write_aside(tmp_path / "no" / "file", "")
    with pytest.raises(OutputFolderError, match=r"/to is a link"):
        opened_to_append(tmp_path / "to")
