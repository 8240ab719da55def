"""Manifests: the same rows pass, and other rows raise an error with the cause on one line."""

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rg_env.core.data.dataset import build_splits
from rg_env.core.data.manifest import check_manifest, read_manifest, split_hash
from rg_env.errors import InputError

GYM = {"name": "maze", "config": {"min_dist": 6}}


@cache
def made() -> dict[str, Any]:
    return build_splits(GYM, 6, 3, seed=1)[2]


def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """A copy of the manifest, changed in place."""
    copied = copy.deepcopy(made())
    change(copied)
    return copied


def test_the_same_arguments_give_the_rows_of_the_manifest(tmp_path: Path) -> None:
    """A manifest may be a mapping, a run's file or its path as text. It may come from an older rg-env that drew the
    same rows."""
    run = tmp_path / "manifest.json"
    run.write_text(json.dumps({"versions": {"torch": "2"}, "python": "3.12", "rows": made()}))
    older = changed(lambda it: it["versions"].update({"rg-env": "0.0.1"}))
    for source in (made(), run, str(run), older):
        assert build_splits(GYM, 6, 3, seed=1, manifest=source)[2] == made()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((GYM, 6, 3, 2), "the seed of the train rows is 1 in the manifest but 2 here"),
        ((GYM, 7, 3, 1), "the size of the train rows is 6 in the manifest but 7 here"),
        (("maze", 6, 3, 1), "the config of task maze is {'min_dist': 6} in the manifest but {} here"),
        (({**GYM, "level": 1}, 6, 3, 1), "the level of task maze is None in the manifest but 1 here"),
        (("leg_counting", 6, 3, 1), "the list of tasks is ['maze'] in the manifest but ['leg_counting'] here"),
    ],
)
def test_other_rows_are_refused(arguments: tuple[Any, ...], words: str) -> None:
    """The error names the argument that differs."""
    with pytest.raises(InputError) as caught:
        build_splits(*arguments, manifest=made())
    assert str(caught.value) == f"the rows differ from the manifest: {words}"


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda it: it["versions"].update({"reasoning-gym": "0.1.1"}),
            "the version of reasoning-gym is '0.1.1' in the manifest but '0.",
        ),
        (
            lambda it: it.update(split_by="question"),
            "the split_by .* is 'question' in the manifest but 'problem' here",
        ),
        (lambda it: it["splits"]["train"]["question_hashes"].reverse(), "the order of the questions in the train rows"),
        (lambda it: it["splits"]["eval"]["question_hashes"].__setitem__(0, "f"), "1 of 3 questions in the eval rows"),
    ],
)
def test_the_first_cause_is_reported(change: Callable[[dict[str, Any]], Any], words: str, later: bool) -> None:
    """A different library version explains all later differences. If only questions differ, the error mentions a
    different rg-env version."""
    expected = changed(change)
    expected["versions"]["rg-env"] = "0.0.1" if later else expected["versions"]["rg-env"]
    with pytest.raises(InputError, match=words) as caught:
        check_manifest(expected, made())
    assert ("made by rg-env 0.0.1; this is" in str(caught.value)) is (later and "questions" in words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps({"rows": {}})[:-3], "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"rows": []}', "not a manifest of rows: its top level is missing or malformed"),
        ('{"rows": null}', "the user's own rows"),
        ('{"versions": {"reasoning-gym": 1}, "tasks": [], "splits": {}}', "not a manifest of rows"),
    ],
)
def test_files_that_are_not_a_manifest(tmp_path: Path, text: str, words: str) -> None:
    """The error is one line, is raised before any row is drawn, and names a missing part."""
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        build_splits("maze", 10**9, 10**9, seed=0, manifest=path)
    assert "\n" not in str(caught.value)
    assert "manifest.json" in str(caught.value)
    for change, where in (
        (lambda it: it.update(tasks=["maze"]), "tasks.0"),
        (lambda it: it["splits"]["eval"].update(question_hashes=[1, 2, 3]), "splits.eval.question_hashes.0"),
        (lambda it: it.pop("split_by"), "split_by"),
    ):
        with pytest.raises(InputError, match=f"not a manifest of rows: {where} is missing or malformed"):
            read_manifest(changed(change))


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing files, folders, impossible file names and values that are not paths are refused."""
    for path, words in (
        (tmp_path / "none.json", "No such file"),
        (tmp_path, "Is a directory"),
        ("a\0b", "null byte"),
        ("x" * 300, "File name too long"),
    ):
        with pytest.raises(InputError, match=f"cannot be read: .*{words}"):
            read_manifest(path)
    with pytest.raises(InputError, match="not a manifest of rows"):
        read_manifest(3)  # type: ignore[arg-type]


def test_a_split_is_identified_by_one_hash() -> None:
    """The hash depends on the split's rows, its tasks and the library's version, but not on the other split."""
    known = split_hash(made(), "eval")
    assert len(known) == 64
    assert known == split_hash(json.loads(json.dumps(made())), "eval")
    assert known == split_hash(build_splits(GYM, 7, 3, seed=2)[2], "eval")
    later = changed(lambda it: it["versions"].update({"rg-env": "9"}))
    assert known == split_hash(later, "eval")
    others = [
        split_hash(made(), "train"),
        split_hash(build_splits(GYM, 6, 3, seed=1, eval_seed=1)[2], "eval"),
        split_hash(changed(lambda it: it["tasks"][0]["config"].update(min_dist=5)), "eval"),
        split_hash(changed(lambda it: it["splits"]["eval"]["question_hashes"].reverse()), "eval"),
        split_hash(changed(lambda it: it["versions"].update({"reasoning-gym": "9"})), "eval"),
    ]
    assert len({known, *others}) == 6
