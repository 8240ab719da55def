"""The error tree, suggestions for unknown names, and installation commands."""

import json
import pickle
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from run_code import run_code

from rg_env import errors
from rg_env.errors import RGEnvError, unknown_name

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, RGEnvError)]


@pytest.mark.parametrize("cls", CLASSES)
def test_errors_survive_pickling(cls: type[RGEnvError]) -> None:
    """Worker processes send errors as pickles."""
    copy = pickle.loads(pickle.dumps(cls("one line")))
    assert type(copy) is cls
    assert str(copy) == "one line"
    assert copy.exit_code in (1, 2)


def test_unknown_name_offers_the_nearest() -> None:
    """Similar names are suggested, including those that contain the name as a word, but distant ones are not. A short
    list of names is given in full."""
    assert errors.nearest("instruction", ["attention", "system_prompt"]) == []
    assert errors.nearest("hanoi", ["n_queens", "tower_of_hanoi"]) == ["tower_of_hanoi"]
    assert "did you mean 'leg_counting'" in str(unknown_name("task", "leg_countin", ["leg_counting", "maze"]))
    assert "available: a, b" in str(unknown_name("column", "zzz", ["b", "a"]))


def test_the_command_that_installs_names_the_repository() -> None:
    """The package is not on an index, so the command contains the address in `[project.urls]`, which the docs also
    show."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    address = project["urls"]["Repository"]
    assert f"  repository: {address}\n" in (Path(__file__).parents[2] / "mkdocs.yml").read_text()
    command = errors.repository_command("train")
    assert command.startswith("pip install 'rg-env[train] @ git+")
    assert set(re.findall(r"https://\S+?(?=')", command)) <= {address}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({"url": "file:///src/rg%20env", "dir_info": {"editable": True}}, "pip install -e '/src/rg env[train]'"),
        ({"url": "file:///src/rg_env", "dir_info": {}}, "pip install '/src/rg_env[train]'"),
        ({"url": "file:///tmp/rg_env-0.1.0-py3-none-any.whl", "archive_info": {}},
         "pip install '/tmp/rg_env-0.1.0-py3-none-any.whl[train]'"),
        ({"url": "https://example.org/a/rg_env", "vcs_info": {"vcs": "git", "commit_id": "0"}},
         "pip install 'rg-env[train] @ git+https://example.org/a/rg_env'"),
        (None, "pip install 'rg-env[train]'"),
    ],
)  # fmt: skip
def test_an_extra_is_installed_from_where_the_package_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str
) -> None:
    """The command has no placeholder, whatever the installer recorded (PEP 610)."""
    info = tmp_path / "rg_env-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rg-env\nVersion: 0.1.0\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    assert errors.install_command("train") == command
    assert errors.how_to_install("train") == f"run `{command}`, or `./setup.sh` in a clone"


def test_a_missing_extra_is_an_error_without_a_chain() -> None:
    """A script's traceback ends with the line that names the remedy."""
    code = "import sys; sys.modules['torch'] = None; import rg_env.training as t; t.GRPOTrainer"
    done = run_code(code, check=False)
    message = f"training needs torch, which is not installed: {errors.how_to_install('train')}"
    assert done.stderr.splitlines()[-1] == f"rg_env.errors.MissingExtraError: {message}"
    assert done.stderr.count("Traceback") == 1
