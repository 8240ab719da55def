"""Other names for models and runs: as typed, from a file, and what is refused."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.errors import InputError
from rg_env.evaluation.plots.merging import new_names

KNOWN = ["base", "outputs/run/checkpoint-100", "lr=1e-5_seed=0", "lr=1e-5"]


def test_names_are_typed_or_stand_in_a_file(tmp_path: Path) -> None:
    """What says the same twice is fine; nothing is asked for where nothing is given."""
    file = tmp_path / "names.json"
    file.write_text(json.dumps({"outputs/run/checkpoint-100": "ours", "base": "Base = 1"}))
    wanted = {"base": "Base = 1", "outputs/run/checkpoint-100": "ours"}
    assert new_names(["base=Base = 1"], file, KNOWN, "model") == wanted
    assert new_names([], None, KNOWN, "model") == {}


def test_names_may_hold_equals_signs() -> None:
    """Those of a sweep's runs do."""
    assert new_names(["lr=1e-5_seed=0=first"], None, KNOWN, "run") == {"lr=1e-5_seed=0": "first"}
    assert new_names(["lr=1e-5_seed=0=a=b"], None, KNOWN, "run") == {"lr=1e-5_seed=0": "a=b"}
    assert new_names(["base=lr=2"], None, KNOWN, "run") == {"base": "lr=2"}


def test_all_are_renamed_at_once() -> None:
    """Two may swap, and take a name that is given up."""
    assert new_names(["a=b", "b=a"], None, ["a", "b"], "model") == {"a": "b", "b": "a"}
    assert new_names(["a=b", "b=c"], None, ["a", "b"], "model") == {"a": "b", "b": "c"}


@given(st.dictionaries(st.sampled_from("abcde"), st.sampled_from("abcdefg")))
def test_what_is_taken_leaves_all_different(names: dict[str, str]) -> None:
    """And what is refused would not."""
    after = [names.get(each, each) for each in "abcde"]
    typed = [f"{old}={new}" for old, new in names.items()]
    if len(set(after)) == 5:
        assert new_names(typed, None, "abcde", "model") == names
    else:
        with pytest.raises(InputError, match=r"would both be '.'"):
            new_names(typed, None, "abcde", "model")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["basse=b"], "--rename basse=b: unknown model 'basse': did you mean 'base'?"),
        (["lr=1e-5_sed=0=x"], "--rename lr=1e-5_sed=0=x: unknown model 'lr=1e-5_sed=0': did you mean 'lr=1e-5_seed=0'"),
        (["zzzz=b"], "--rename zzzz=b: unknown model 'zzzz': there are: base, lr=1e-5, "),
        (["=b"], "--rename =b: unknown model ''"),
        (["base"], "--rename base: give it as OLD=NEW (files stand before the options)"),
        (["base="], "--rename base=: the new name of 'base' is empty"),
        (["base= "], "the new name of 'base' is empty"),
        (["base=a", "base=b"], "--rename base=b: 'base' is already renamed to 'a'"),
        (["base=lr=1e-5"], "'base' and 'lr=1e-5' would both be 'lr=1e-5': the names of a picture have to differ"),
        (["base=x", "outputs/run/checkpoint-100=x"], "'base' and 'outputs/run/checkpoint-100' would both be 'x'"),
    ],
)
def test_mistakes_are_told(typed: list[str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        new_names(typed, None, KNOWN, "model")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_can_mean_two_is_told() -> None:
    with pytest.raises(InputError, match="can mean the model 'a' or 'a=b'; say it by --rename-file"):
        new_names(["a=b=c"], None, ["a", "a=b"], "model")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON: Expecting value"),
        ("{", "is not JSON: "),
        ("[" * 100_000, "is not JSON: "),
        ("[]", 'has to hold new names by old ones: {"OLD": "NEW"}'),
        ('{"base": 3}', "has to hold new names by old ones"),
        ('{"bse": "x"}', "unknown model 'bse': did you mean 'base'?"),
        ('{"base": ""}', "the new name of 'base' is empty"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_mistakes_in_the_file_are_told(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError) as raised:
        new_names([], file, KNOWN, "model")
    assert str(raised.value).startswith(f"--rename-file {file}")
    assert message in str(raised.value)
