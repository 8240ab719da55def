"""The library's entries for a config, by question."""

import pytest

from rg_env.core.data import library_entries
from rg_env.core.data.library_entries import entries_for
from rg_env.core.processes import JsonProcess
from rg_env.errors import InputError


def test_entries_are_drawn_until_the_questions_are_found_and_cached(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call starts no process, unless a question is still missing. What cannot be drawn in time is not drawn
    again."""
    monkeypatch.setenv("RG_ENV_CACHE", str(tmp_path_factory.mktemp("cache")))
    config = {"seed": 45, "size": 30, "max_numbers": 3}
    found = entries_for("gcd", config, [""])  # all of them
    assert (len(found), {each["metadata"]["source_dataset"] for each in found.values()}) == (30, {"gcd"})
    drawn: list[int] = []
    monkeypatch.setattr(library_entries, "_drawn", lambda what, wanted: drawn.append(1) or [])
    assert entries_for("gcd", config, list(found)[:3]) == entries_for("gcd", config, ["another"]) == found
    assert drawn == []
    assert entries_for("gcd", {**config, "seed": 46}, ["another"]) == {}
    assert drawn == [1]


def test_only_cpu_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries after the limit are missing. Grades must not depend on how busy a machine is, so a limit on time by the
    clock ends with an error instead."""
    monkeypatch.setattr(library_entries, "_CPU_S", 1)
    what = {"library": "gcd", "config": {"min_numbers": 2000, "max_numbers": 2000}, "seed": 1, "size": 100_000}
    entries = library_entries._drawn(what, {""})
    assert (len(entries), entries[-1]) == (100_000, None)
    monkeypatch.setattr(library_entries, "_SILENCE_S", 0.0)
    with pytest.raises(InputError, match="is silent for 0 s"):
        library_entries._drawn(what, {""})


def test_a_dead_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        library_entries, "JsonProcess", lambda main, environment: JsonProcess("no_module:f", environment)
    )
    with pytest.raises(InputError, match="the process that generates the entries ended"):
        entries_for("gcd", {"seed": 47}, ["?"])


def test_rejected_options_are_reported() -> None:
    with pytest.raises(InputError, match="task 'gcd' does not work with config"):
        entries_for("gcd", {"seed": 1, "min_numbers": -3}, ["?"])
