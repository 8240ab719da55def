"""Importing user code: files and modules, their effects on the process, and errors."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from data_files import data
from run_code import run_code
from user_code import runs

from rg_env.core.rewards import resolve_rewards
from rg_env.core.user_code import import_same, import_user_code, sources
from rg_env.errors import InputError

Write = Callable[..., Path]
COUNTED = "import user_code\nuser_code.runs.append(__name__)\nclass Thing: pass\n"
"""A module that records each of its runs."""


def test_a_file_becomes_a_module_of_its_name(write: Write) -> None:
    """A file is imported once, whichever path names it. Its classes can be pickled, and neither `sys.path` nor the
    folder changes."""
    path = write("plain_things.py", COUNTED)
    before = list(sys.path)
    import_user_code(["plain_things.py", str(path)], base=path.parent)
    import_user_code(["../" + path.parent.name + "/plain_things.py"], base=path.parent)
    assert (len(runs), tuple(sources())) == (1, (str(path),))
    module = sys.modules["plain_things"]
    assert pickle.loads(pickle.dumps(module.Thing)) is module.Thing
    assert module.Thing.__module__ == "plain_things"
    assert sys.path == before
    assert os.listdir(path.parent) == ["plain_things.py"]


def test_a_taken_name_is_made_unique(write: Write) -> None:
    """A file named like a library does not replace it."""
    path = write("json.py", COUNTED)
    odd = write("my-own things.py", COUNTED)
    import json

    import_user_code([str(path), str(odd)])
    assert len(runs) == 2
    assert sys.modules["json"] is json
    (name,) = [name for name, module in sys.modules.items() if getattr(module, "__file__", "") == str(path)]
    assert name.startswith("json_")
    assert sys.modules["my_own_things"].__file__ == str(odd)


def test_modules_are_imported_by_name(write: Write) -> None:
    """The hash of a module covers its entire package, including files that are not imported."""
    write("own_pkg/__init__.py", "")
    write("own_pkg/deep/__init__.py", "")
    helper = write("own_pkg/helper.py", "x = 1")
    sys.path.insert(0, str(write("own_pkg/deep/things.py", COUNTED).parents[2]))
    import_user_code(["own_pkg.deep.things"])
    assert (len(runs), tuple(sources())) == (1, ("own_pkg.deep.things",))
    import_same(sources())
    code = (
        "import sys; from rg_env.core.user_code import *; import_user_code(['own_pkg.deep.things']); print(sources())"
    )
    hashes = []
    for text in ("x = 1", "x = 2"):
        helper.write_text(text)
        path = os.pathsep.join([str(helper.parents[1]), *sys.path])
        hashes.append(run_code(code, PYTHONPATH=path).stdout.strip())
    assert hashes[0] == str(sources()) != hashes[1]


def test_the_running_script_is_not_run_again(write: Write) -> None:
    """A script may pass its own file to `import_user_code`."""
    text = (
        "import sys, rg_env\nfrom rg_env.core.user_code import sources\nprint('read', __name__)\n"
        "if __name__ == '__main__':\n    rg_env.import_user_code([__file__])\n    print([*sources()] == [__file__])\n"
    )
    path = write("script.py", text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["read __main__", "True"]


def test_another_process_refuses_an_edited_source(write: Write) -> None:
    """Rows and scores of one run never come from two versions of a file."""
    path = write("edited.py", COUNTED)
    with pytest.raises(InputError, match=r"edited\.py was edited while the program was running: restart the program"):
        import_same({str(path): "0" * 64})
    import_same({str(path): sources()[str(path)]})


@pytest.mark.parametrize(("name", "text", "message"), data("bad_imports"))
def test_errors_are_one_line(write: Write, tmp_path: Path, name: str, text: str | None, message: str) -> None:
    """The error states what is missing, or what the import raised and the last line of the user's code involved.
    Nothing stays imported."""
    write("broken_pkg/__init__.py", "")
    write("broken_pkg/inner.py", "\n\n1 / 0\n")
    sys.path.insert(0, str(write("broken_pkg/tasks.py", "from broken_pkg import inner\n").parents[1]))
    if text is not None:
        write(name, text)
    with pytest.raises(InputError, match=message) as raised:
        import_user_code([name], base=tmp_path)
    assert "\n" not in str(raised.value)
    assert sources() == {}
    assert "bad" not in sys.modules
    with pytest.raises(InputError, match=r"not 'tasks.py': write \['tasks.py'\]"):
        import_user_code("tasks.py")
    for names in (None, 5, [None]):
        with pytest.raises(InputError, match="imports must be a list of modules and"):
            import_user_code(names)  # type: ignore[arg-type]


def test_imported_rewards_are_available_by_name(write: Write, tmp_path: Path) -> None:
    """The function's module is that of the user's file."""
    text = (
        "import rg_env\n\n@rg_env.reward\ndef own_ending(rollout, mark='.'):\n    return rollout.text.endswith(mark)\n"
    )
    write("own_rewards.py", text)
    with pytest.raises(InputError, match="unknown reward 'own_ending'"):
        resolve_rewards(["own_ending"])
    import_user_code(["own_rewards.py"], base=tmp_path)
    (found,) = resolve_rewards([{"name": "own_ending", "weight": 0.5, "options": {"mark": "!"}}])
    assert (found.name, found.weight) == ("own_ending", 0.5)
    (plain,) = resolve_rewards(["own_ending"])
    assert plain.function.__module__ == "own_rewards"
