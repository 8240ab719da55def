"""`imports` in config files: each list relative to its own file, all of them together."""

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from rg_env.core.config.parsing import Section, parse_config, read_config
from rg_env.errors import ConfigError, InputError


class Config(Section):
    """A config that imports."""

    imports: list[str] = Field(default_factory=list)
    seed: int = 0


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_files_are_relative_to_the_config_that_names_them(tmp_path: Path) -> None:
    """Also where the config is read by a relative path; modules and absolute paths stay as they are."""
    _write(tmp_path / "configs/run.yaml", "imports: [own.py, ../tasks/more.py, my_package.tasks, /somewhere/else.py]")
    wanted = [f"{tmp_path}/configs/own.py", f"{tmp_path}/tasks/more.py", "my_package.tasks", "/somewhere/else.py"]
    with contextlib.chdir(tmp_path):
        for file in ("configs/run.yaml", tmp_path / "configs/run.yaml"):
            assert read_config(file).values == {"imports": wanted}


def test_lists_of_extended_files_add_up(tmp_path: Path) -> None:
    """Those of the extended files first, in their order, each once; where they were given is that of the last file."""
    _write(tmp_path / "base/a.yaml", "imports: [a.py, shared.module]")
    _write(tmp_path / "base/b.yaml", "extends: a.yaml\nseed: 1\nimports:\n  - b.py\n  - a.py\n")
    _write(tmp_path / "base/none.yaml", "seed: 2")
    file = _write(tmp_path / "run.yaml", "extends: [base/b.yaml, base/none.yaml]\nimports: [shared.module, own.py]")
    document = read_config(file)
    names = [f"{tmp_path}/base/a.py", "shared.module", f"{tmp_path}/base/b.py", f"{tmp_path}/own.py"]
    assert document.values == {"imports": names, "seed": 2}
    assert document.origin(("imports",)) == f"{file}:2"
    assert parse_config(document, Config).imports == names


def test_null_takes_away_what_extended_files_import(tmp_path: Path) -> None:
    """As for every other key."""
    _write(tmp_path / "base.yaml", "imports: [a.py]")
    file = _write(tmp_path / "run.yaml", "extends: base.yaml\nimports: null")
    assert read_config(file).values == {}
    over = _write(tmp_path / "over.yaml", "extends: run.yaml\nimports: [b.py]")
    assert read_config(over).values == {"imports": [f"{tmp_path}/b.py"]}


@pytest.mark.parametrize("value", ["{a: 1}", "3"])
@pytest.mark.parametrize("extends", ["", "extends: base.yaml\n"])
def test_what_is_no_list_is_told_by_the_schema(tmp_path: Path, value: Any, extends: str) -> None:
    """With the file and the line of it, also where an extended file has a list."""
    _write(tmp_path / "base.yaml", "imports: [a.py]")
    file = _write(tmp_path / "run.yaml", f"{extends}imports: {value}")
    with pytest.raises(ConfigError, match=rf"^imports.* @ .*run\.yaml:{1 + bool(extends)}: must be ") as raised:
        parse_config(read_config(file), Config)
    assert os.linesep not in str(raised.value)


def test_imports_are_not_set_on_the_command_line(tmp_path: Path) -> None:
    """A path there would be relative to something else."""
    with pytest.raises(InputError, match="imports is read from config files only"):
        read_config(_write(tmp_path / "run.yaml", "seed: 1"), ["imports=[a.py]"])
