"""The user's own tasks: by name, with options and levels, generated in other processes, cached on disk."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_code import run_code
from user_code import TASK

from rg_env.core.data.dataset import build_rows, build_splits
from rg_env.core.data.generation import check_options
from rg_env.core.data.manifest import check_manifest
from rg_env.core.tasks.mixture import Mixture
from rg_env.core.tasks.task_table import load_table, shipped_table
from rg_env.core.user_code import checked_entry, import_user_code, sources
from rg_env.errors import InputError

Write = Callable[..., Path]


@pytest.fixture
def own_sums(write: Write) -> Path:
    """The file that registers the task own_sums, imported."""
    path = write("own_tasks.py")
    import_user_code([str(path)])
    return path


def test_names_options_and_levels_are_known(own_sums: Path) -> None:
    """Options and levels come from the user's classes, and the error for a typo suggests similar names."""
    assert load_table()["own_sums"] == {
        "module": "own_tasks",
        "category": "user",
        "options": {"terms": 2, "highest": 50, "opens_in_s": 0.0},
        "levels": {"length": [{"terms": 2}, {"terms": 3}, {"terms": 5}]},
        "broken_levels": {},
    }
    assert "own_sums" not in shipped_table()
    (spec,) = Mixture.parse({"name": "own_sums", "level": 2, "config": {"highest": 9}}).tasks
    assert spec.config == {"terms": 5, "highest": 9}
    for wrong, message in (
        ({"config": {"higest": 9}}, "unknown option 'higest' of task 'own_sums': did you mean 'highest'"),
        ({"name": "own_sum"}, "unknown task 'own_sum': did you mean 'own_sums'"),
        ({"level": 3}, "level must be a whole number from 0 to 2, not 3"),
        ({"config": {"size": 9}}, "'size' is not a task option"),
    ):
        with pytest.raises(InputError, match=message):
            Mixture.parse({"name": "own_sums", **wrong})


@pytest.mark.slow
def test_children_have_a_fixed_hash_seed_and_no_secrets(write: Write) -> None:
    """The questions contain what the user's code sees where rows are drawn: its environment, and the order of a set."""
    assert "PYTEST_CURRENT_TEST" in os.environ
    question = 'f"{index} {sorted(os.environ)} {[*set(string.ascii_letters)]} {dict(os.environ)}"'
    text = TASK.replace('" + ".join(map(str, terms)) + " = ?"', question).replace(
        "import time", "import os, string, time"
    )
    import_user_code([str(write("spy.py", text))])
    one, two = (build_rows("own_sums", "train", 8, seed=0, cache=False, processes=1) for _ in range(2))
    assert one == two
    for row in one:
        assert "'PYTHONHASHSEED': '0'" in row["question"]
        assert "PYTEST_CURRENT_TEST" not in row["question"]


PRINT_ROWS = """
import sys
from rg_env.core.data import dataset
from rg_env.core.user_code import import_user_code
import_user_code([sys.argv[1]])
if "kept" in sys.argv:
    dataset.Generation = None
rows, _, manifest = dataset.build_splits(["own_sums"], 6, 2, seed=1)
print([row["answer"] for row in rows], manifest["imports"]["own_tasks.py"])
"""


@pytest.mark.slow
def test_an_edited_source_gives_new_rows(write: Write, tmp_path: Path) -> None:
    """Rows are read from disk while the file is unchanged. After an edit they are generated again, even if the
    modification time is the same."""
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "RG_ENV_CACHE": str(tmp_path / "cache")}
    path = write("own_tasks.py")
    times = path.stat()

    def rows(*arguments: str) -> str:
        return run_code(PRINT_ROWS, path, *arguments, **own).stdout

    first = rows()
    assert rows("kept") == first
    path.write_text(path.read_text().replace('"answer": str(sum(', '"answer": str(max('))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = rows()
    assert second.split("]")[0] != first.split("]")[0]
    assert second.split("]")[1] != first.split("]")[1]
    path.write_text(TASK)
    assert rows("kept") == first


@pytest.mark.slow
def test_a_manifest_reveals_edited_tasks(own_sums: Path) -> None:
    """The manifest contains the source's hash. A different hash explains different questions, but is not an error by
    itself."""
    _, _, manifest = build_splits("own_sums", 4, 2, seed=1)
    assert manifest["imports"] == {"own_tasks.py": sources()[str(own_sums)]}
    edited = json.loads(json.dumps(manifest))
    edited["imports"]["own_tasks.py"] = "0" * 64
    check_manifest(edited, manifest)
    edited["splits"]["train"]["question_hashes"][0] = "0" * 64
    with pytest.raises(
        InputError, match=r"1 of 4 questions in the train rows differs \(your own tasks have been edited"
    ):
        check_manifest(edited, manifest)
    assert "imports" not in build_splits("leg_counting", 4, 2, seed=1)[2]


ITEM = '{"question": " + ".join(map(str, terms)) + " = ?", "answer": str(sum(terms)), "metadata": {"t": terms}}'


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"question": "?", "metadata": {}}, "an item has an invalid or missing value: answer = .*required"),
        (None, "an item must be a dict with question and answer, not None"),
        ({"question": 3, "answer": "1"}, "an item has an invalid or missing value: question = 3"),
        ({"question": " ", "answer": "1"}, "an item has an invalid or missing value: question = ' '"),
        ({"question": "?", "answer": 3}, "an item has an invalid or missing value: answer = 3"),
        ({"question": "?", "answer": "1", "metadata": [1]}, r"an item .* value: metadata = \[1\]"),
        ({"question": "?", "answer": "1", "metadata": {(1, 2): 3}}, "an item cannot be written as JSON: keys must be"),
    ],
)
def test_invalid_items(own_sums: Path, item: object, message: str) -> None:
    """The error is one line that names the task and its class."""
    with pytest.raises(InputError, match=rf"^task 'own_sums' \(own_tasks\.Sums\): {message}") as raised:
        checked_entry("own_sums", item)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({ITEM: "None"}, r" \(own_bad_items\.Sums\): an item must be a dict"),
        (
            {"Random(self.seed + index)": "self.rng", "size=config.size)": "size=config.size); self.rng = Random(1)"},
            ": item 0 differs when drawn again; an item must",
        ),
    ],
)
def test_bad_items_end_the_build(write: Write, changes: dict[str, str], message: str) -> None:
    """The error comes from the process that draws the items. An item that depends on earlier draws would be different
    in another process."""
    text = TASK
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    import_user_code([str(write("own_bad_items.py", text))])
    with pytest.raises(InputError, match=f"^task 'own_sums'{message}"):
        build_rows("own_sums", "train", 4, seed=0, cache=False)


@pytest.mark.slow
def test_python_values_become_json(write: Write) -> None:
    """`score_answer` receives dates, tuples and keys in the metadata as JSON has them. An item may be any mapping."""
    metadata = '{"when": __import__("datetime").date(2024, 5, 1), 1: (2,)}'
    item = f'MappingProxyType({{"question": f"{{index}}?", "answer": "1", "metadata": {metadata}}})'
    text = TASK.replace(ITEM, item).replace("import time", "import time\nfrom types import MappingProxyType")
    import_user_code([str(write("own_values.py", text))])
    (row,) = build_rows("own_sums", "train", 1, seed=0, cache=False)
    assert json.loads(row["info"]["entry"])["metadata"] == {"when": "2024-05-01", "1": [2]}


@pytest.mark.parametrize(
    ("old", "new", "config", "message", "line"),
    [
        ("rng = Random", "1 / 0; rng = Random", {}, "ZeroDivisionError: division by zero", 28),
        pytest.param(
            "super().__init__",
            "raise OSError('no data'); super().__init__",
            {},
            "OSError: no data",
            24,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "seed: int", "seed: int", {"terms": 1}, "AssertionError: terms must be above 1", 19, marks=pytest.mark.slow
        ),
    ],
)
def test_what_the_users_dataset_raises(
    write: Write, old: str, new: str, config: dict[str, Any], message: str, line: int
) -> None:
    """The error is one line with the exception and its location in the user's file."""
    import_user_code([str(write("own_bad.py", TASK.replace(old, new, 1)))])
    message = rf"^task 'own_sums' does not work with config .*: {message} \(.*/own_bad\.py, line {line}\)$"
    if config:  # also reported before questions are drawn
        with pytest.raises(InputError, match=message.replace("^", "^tasks.x.config: ")):
            check_options({"tasks.x": Mixture.parse({"name": "own_sums", "config": config}).tasks[0]})
    with pytest.raises(InputError, match=message) as raised:
        build_rows({"name": "own_sums", "config": config}, "train", 4, seed=0, cache=False)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"own_sums"', '"maze"', r"Dataset 'maze' is already registered \(.*, line"),
        ('"own_sums"', '"a/b"', "registers a task with the invalid name 'a/b': use letters, digits"),
        ("    size: int = 500\n", "", r"its config Config lacks the required field 'size'"),
        ("terms: int = 2", "terms: int", r"its config Config or its curriculum cannot be read: TypeError: .*'terms'"),
        ('field_name="terms"', 'field_name="term"', r"curriculum cannot be read: TypeError: .*argument 'term'"),
        (
            "levels=[2, 3, 5]",
            "levels=[2, 3, 5], default_level=1",
            "cannot be read: AssertionError: .* assumes level 0 for",
        ),
    ],
)
def test_invalid_tasks_are_refused_on_import(write: Write, old: str, new: str, message: str) -> None:
    """The error names the file that registers the task."""
    assert TASK.count(old) == 1
    with pytest.raises(InputError, match=rf"^imports: .*own_new\.py.*{message}") as raised:
        import_user_code([str(write("own_new.py", TASK.replace(old, new)))])
    assert "\n" not in str(raised.value)
    assert "own_sums" not in load_table()


@pytest.mark.slow
def test_a_task_that_only_the_running_script_registers_is_refused(write: Write) -> None:
    """Other processes import the file without running the code under `if __name__ == "__main__"`."""
    head, _, _ = TASK.rpartition("register_dataset(")
    text = head + (
        "if __name__ == '__main__':\n"
        "    register_dataset('own_sums', Sums, Config)\n"
        "    import rg_env\n"
        "    from rg_env.core.data.dataset import build_rows\n"
        "    rg_env.import_user_code([__file__])\n"
        "    try:\n"
        "        build_rows('own_sums', 'train', 4, seed=0, cache=False)\n"
        "    except rg_env.InputError as error:\n"
        "        print(error)\n"
    )
    path = write("script.py", text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True, env=environment)
    assert (
        f"task 'own_sums' is not registered by importing {path}: call register_dataset at the top level" in done.stdout
    )
