"""Reading configs: `extends`, imports, overrides, YAML as people write it, and errors with their location."""

import contextlib
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from data_files import data
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from rg_env.core.config.files import Document, without_nulls
from rg_env.core.config.parsing import Problem, Rewards, Section, TaskOptions, parse_config, read_config
from rg_env.core.config.yaml12 import load, to_yaml
from rg_env.errors import ConfigError, InputError


class Inner(Section):
    """A section."""

    short: ClassVar = "label"
    renamed: ClassVar = {"lr": "use rate"}

    rate: float = 0.5
    """A number."""
    label: str = ""
    """The key that plain text sets."""
    words: list[str] | None = None
    """Texts."""
    sizes: list[int] = Field(default_factory=list)
    """A list of numbers."""


class Outer(Section):
    """A config."""

    mistaken: ClassVar = {"others": "this is another kind of config: rg-env other FILE"}

    name: str
    """A required key."""
    inner: Inner = Inner()
    """A nested section."""
    named: dict[str, Inner] = Field(default_factory=dict)
    """Sections by name."""
    tasks: dict[str, TaskOptions] = Field(default_factory=dict)
    """Tasks by name."""
    maybe: Inner | None = None
    """An optional section."""
    count: int = Field(default=1, ge=1)
    """A whole number."""
    flag: bool = False
    """A boolean."""
    kind: Literal["plain", "faster_one"] = "plain"
    """A name."""
    kinds: list[Literal["plain", "faster_one"]] = Field(default_factory=list)
    """Names."""


def write(folder: Path, **files: str) -> Path:
    """Write these texts to files NAME.yaml and return the first file."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder / f"{next(iter(files))}.yaml"


def values(folder: Path, *overrides: str, **files: str) -> dict[str, Any]:
    return read_config(write(folder, **files), overrides).values


def test_later_files_win_and_the_file_itself_last(tmp_path: Path) -> None:
    """Mappings are merged and lists replaced. Paths are relative to the file that names them."""
    (tmp_path / "sub").mkdir()
    files = {
        "main": "extends: [one.yaml, sub/two.yaml]\nc: {x: main}\n",
        "one": "a: 1\nc: {x: one, y: one, l: [1, 2]}\n",
        "sub/two": "extends: deep.yaml\na: 2\nc: {y: two, l: [3]}\n",
        "sub/deep": "a: 3\nb: 2\n",
    }
    assert values(tmp_path, **files) == {"a": 2, "b": 2, "c": {"x": "main", "y": "two", "l": [3]}}


def test_null_removes_a_key(tmp_path: Path) -> None:
    """`null` removes a key and all keys below it: in a file, in an override and within lists."""
    files = {"main": "extends: base.yaml\nnamed: {a: null}\n", "base": "name: n\ncount: 3\nnamed: {a: {}, b: {}}\n"}
    assert values(tmp_path, "count=null", **files) == {"name": "n", "named": {"b": {}}}
    assert values(tmp_path, main="a: [{b: null, c: 1}, null]\n") == {"a": [{"c": 1}, None]}


def test_an_override_replaces_the_value_at_its_path(tmp_path: Path) -> None:
    found = values(
        tmp_path, "inner.rate=1e-6", "named={x: {rate: 2}}", main="inner: {rate: 1, sizes: [1]}\nnamed: {y: {}}"
    )
    assert found == {"inner": {"rate": 1e-6, "sizes": [1]}, "named": {"x": {"rate": 2}}}


def test_an_override_within_a_list_of_names_keeps_the_others(tmp_path: Path) -> None:
    """Each name in the list becomes a section. An override of a name that is not in the list, or within any other list,
    is refused because the list would be lost."""
    found = values(tmp_path, "named.y.rate=2", main="named: [x, y]\n")
    assert found == {"named": {"x": {}, "y": {"rate": 2}}}
    for text in ("named: [x]\n", "named: [{y: 1}]\n", "named: [y, 3]\n", "named: []\n"):
        with pytest.raises(InputError) as error:
            values(tmp_path, "named.y.rate=2", main=text)
        assert re.search(r"named is a list \(.*main.yaml:1\), .* set the entire value, named=\.\.\.$", str(error.value))


def test_an_override_within_a_models_name_keeps_the_name(tmp_path: Path) -> None:
    """In an evaluation config, a model given as text is its name."""
    found = values(tmp_path, "models.base.url=http://127.0.0.1:1/v1", main="models: {base: tiny, other: a}\n")
    assert found["models"] == {"base": {"model": "tiny", "url": "http://127.0.0.1:1/v1"}, "other": "a"}
    found = values(tmp_path, "models.base.model=b", "models.base.url=u", main="models: {base: tiny}\n")
    assert found["models"] == {"base": {"model": "b", "url": "u"}}


def test_the_parents_that_other_tools_name_are_read(tmp_path: Path) -> None:
    """`_base_` stays in the values, so that it is reported as a mistake, together with the mistakes in the parents."""
    document = read_config(
        write(
            tmp_path, main="_base_: [one.yaml, gone.yaml]\na: 1\n", one="_base_: two.yaml\nb: 2\n", two="c: 3\na: 0\n"
        )
    )
    assert {key: document.values[key] for key in "abc"} == {"a": 1, "b": 2, "c": 3}
    places = document.origin(("_base_",)).split(" and ")
    assert [place.rpartition("/")[2] for place in places] == ["main.yaml:1", "one.yaml:1"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("2E5", 2e5), (".5", 0.5), ("-3", -3), ("010", 10), ("true", True), ("on", "on"), ("no", "no"),
     ("2024-01-01", "2024-01-01"), ("0x10", "0x10"), ("1_000", "1_000"), ("12:30", "12:30"), ("''", ""),
     (".inf", math.inf)],
)  # fmt: skip
def test_scalars_are_what_they_look_like(tmp_path: Path, text: str, value: object) -> None:
    """YAML 1.1 would read 1e-6 as text, `on` as a boolean, 2024-01-01 as a date and 12:30 as a number in base 60."""
    assert values(tmp_path, main=f"a: {text}\n") == {"a": value}
    assert values(tmp_path, f"a={text}", main="{}") == {"a": value}


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.dictionaries(
    st.text(min_size=1),
    st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5),
)


@given(tree=trees)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]) -> None:
    """Any tree of plain values survives a round trip through YAML, except for null values."""
    tree.pop("extends", None)
    file = tmp_path_factory.mktemp("config") / "x.yaml"
    file.write_text(to_yaml(tree), encoding="utf-8")
    assert json.dumps(read_config(file).values, sort_keys=True) == json.dumps(without_nulls(tree), sort_keys=True)


@given(text=st.text() | st.from_regex(r"[a-z.]{0,8}=[\[\]{}:,&*!a-z0-9 '\"-]{0,12}", fullmatch=True))
def test_overrides_raise_only_input_errors(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "empty.yaml"
    file.write_text("name: n\n")
    with suppress(InputError):
        parse_config(read_config(file, [text]), Outer)


LAUGHS = "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"main": "extends: a.yaml", "a": "extends: main.yaml"}, "circularly: main.yaml -> a.yaml -> main.yaml"),
        (
            {"main": "name: a\nextends: none.yaml"},
            "main.yaml:2: there is no file ",
        ),
        ({"main": f"extends: {'x' * 5000}.yaml"}, "there is no file"),
        ({"main": "\nextends: {a: b}"}, "main.yaml:2: extends must name a file or a list of files"),
        ({"main": "extends: bytes.yaml"}, "not UTF-8 text"),
        ({"main": "[1]"}, "must be a mapping of sections, not [1]"),
        ({"main": "3"}, "must be a mapping of sections, not 3"),
        ({"main": "a: 1\na: 2\n"}, "line 2, column 1: the key 'a' appears twice"),
        ({"main": "a: [1\n"}, "main.yaml': line 2, column 1: "),
        ({"main": "a: !!python/object/apply:os.system [true]\n"}, "line 1, column 4: the tag"),
        ({"main": "a: &x [*x]\n"}, "nested more than 50 levels deep"),
        ({"main": "? [1, 2]\n: 3\n"}, "a key must be plain text"),
        ({"main": f"a0: &a0 [x]\n{LAUGHS}"}, "more than 100,000 values"),
        (
            {"main": "extends: d0.yaml"}
            | {f"d{n}": f"extends: [d{n + 1}.yaml, d{n + 1}.yaml]" for n in range(24)}
            | {"d24": "a: 1"},
            "configs extend more than 1000 files",
        ),
        ({"main": "data:\n  answer_after: ####\n"}, "line 2: data.answer_after has no value because '#' starts a"),
        ({"main": "prompt:\n  system_prompt: # Rules\n"}, "line 2: prompt.system_prompt has no value"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, files: dict[str, str], words: str) -> None:
    """Each error is one line, including those for a missing file and a folder."""
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    main = write(tmp_path, **files)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    others = {
        tmp_path / "gone.yaml": "No such",
        tmp_path: "Is a dir",
        tmp_path / "model": "use `rg-env eval --models ",
        tmp_path / "a=1": "the config comes first, then the overrides",
    }
    for file, reason in {main: words, **others}.items():
        with pytest.raises(InputError) as caught:
            read_config(file)
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("override", "line"), data("config_mistakes"))
def test_a_mistake_is_reported_with_path_value_place_and_fix(tmp_path: Path, override: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(read_config(write(tmp_path, main="name: n\n"), [override]), Outer)
    assert str(caught.value) == line


def test_all_mistakes_are_reported_at_once_each_with_its_line(tmp_path: Path) -> None:
    """A mistake in an extended file is reported with that file and its line."""
    main = write(tmp_path, main="extends: base.yaml\ncount: 0\n", base="name: n\ninner:\n  rate: x\n")
    with pytest.raises(ConfigError) as caught:
        parse_config(read_config(main, ["flag=1"]), Outer)
    assert str(caught.value).splitlines() == [
        f"{main}: 3 mistakes",
        f"  inner.rate = 'x' @ {tmp_path / 'base.yaml'}:3: must be a number",
        f"  count = 0 @ {main}:2: must be at least 1",
        "  flag = 1 @ command line: must be true or false",
    ]


@pytest.mark.parametrize(
    ("text", "override", "line"),
    [
        ("", "count=1", "FILE: name: is required"),
        ("name: n\n", f"inner.rate=[{10**309}]", "inner.rate = [1000"),
        ("name: n\nnamed:\n  a: {rate: 1}\n", "named.b.rat=1", "named.b.rat = 1 @ command line: unknown key 'rat'"),
        ("name: n\ntasks:\n  a: {}\n  b:\n", "count=1", "tasks.b = null @ FILE:4: has no value: write {}"),
        ("name: n\ninner.rate: 1\n", "count=1", "inner.rate = 1 @ FILE:2: a key cannot contain a period: write inner:"),
        ("name: n\ninner:\n\u00a0 rate: 1\n", "count=1", "\u00a0 rate = 1 @ FILE:3: '\\xa0 rate' contains an invis"),
    ],
)
def test_a_mistake_names_the_file_or_the_command_line(tmp_path: Path, text: str, override: str, line: str) -> None:
    file = write(tmp_path, main=text)
    with pytest.raises(ConfigError) as caught:
        parse_config(read_config(file, [override]), Outer)
    assert str(caught.value).startswith(line.replace("FILE", str(file)))


def test_the_origin_of_an_entry_is_where_its_keys_are_set(tmp_path: Path) -> None:
    """An override adds the entry `b` to a section of the file."""
    document = read_config(write(tmp_path, main="named:\n  a: {rate: 1}\n"), ["named.b.rate=1"])
    assert document.origin(("named", "b")) == "command line"
    assert document.origin(("named", "c")).endswith("main.yaml:1")


def test_the_origin_of_an_emptied_section_is_the_null(tmp_path: Path) -> None:
    main = write(tmp_path, main="extends: base.yaml\nnamed:\n  a: null\n", base="named: {a: {}}\n")
    assert read_config(main).origin(("named",)) == f"{main}:3"


def test_names_are_checked_together_with_the_schema(tmp_path: Path) -> None:
    """Problems found by the caller's check are reported with the mistakes in other keys, but not if a required key is
    missing."""

    def names(config: Outer) -> Iterator[Problem]:
        for name in config.named:
            yield Problem(("named", name), "there is no such name")

    document = read_config(write(tmp_path, main="name: n\nnamed: {x: {}}\n"), ["flag=1", "inner.rat=null"])
    with pytest.raises(ConfigError) as caught:
        parse_config(document, Outer, names)
    keys = [line.split(" = ")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert keys == ["inner.rat", "flag", "named.x"]
    with pytest.raises(ConfigError) as caught:
        parse_config(read_config(tmp_path / "main.yaml", ["name=null", "flag=1"]), Outer, names)
    assert "named" not in str(caught.value)


def test_short_forms(tmp_path: Path) -> None:
    """Plain text sets a section's main key, or becomes a list of one item."""
    config = parse_config(read_config(write(tmp_path, main="name: n\nmaybe: big\ninner: {words: a}\n")), Outer)
    assert (config.maybe and config.maybe.label, config.inner.words) == ("big", ["a"])
    with pytest.raises(ConfigError, match="must be a list"):
        parse_config(read_config(tmp_path / "main.yaml", ["inner.sizes=x"]), Outer)


def test_forms_of_rewards() -> None:
    """Rewards may be a name, a list of names and mappings with a name, or a mapping from names to weights."""

    class Scored(Section):
        rewards: Rewards = Field(default_factory=dict)

    for shape in ("a", ["a", {"name": "b", "weight": 0.5}], {"a": 1, "b": 0.5}):
        document = Document({"rewards": shape}, Path("x.yaml"))
        rewards = parse_config(document, Scored).rewards
        assert [(name, each.weight) for name, each in rewards.items()] == [("a", 1.0), ("b", 0.5)][: len(rewards)]
    with pytest.raises(ConfigError, match="'a' appears twice: name it once"):
        parse_config(Document({"rewards": ["a", "a"]}, Path("x.yaml")), Scored)


def test_a_config_of_another_kind_is_one_line(tmp_path: Path) -> None:
    main = write(tmp_path, main="others: {a: 1}\nflag: 3\n")
    with pytest.raises(ConfigError) as caught:
        parse_config(read_config(main), Outer)
    assert str(caught.value) == f"{main}: this is another kind of config: rg-env other FILE"


@pytest.mark.parametrize(
    "override",
    [
        *(
            "no equals sign",
            "=1",
            "a..b=1",
            "extends=x.yaml",
            "imports=[a.py]",
            "a=[",
            "a={x: 1, x: 2}",
            "a=&a [*a]",
            "a=",
            "a= ",
        )
    ],
)
def test_invalid_overrides(tmp_path: Path, override: str) -> None:
    with pytest.raises(InputError, match="override"):
        values(tmp_path, override, main="{}")


@pytest.mark.parametrize("text", ["####", "# Rules", "lab #7", "[a] # b", "---"])
def test_an_override_that_yaml_would_cut_must_be_quoted(tmp_path: Path, text: str) -> None:
    """Other overrides may contain a hash."""
    with pytest.raises(InputError, match=r"cannot read the value \('.* in YAML\); quote it if it is text"):
        values(tmp_path, f"name={text}", main="{}")
    assert values(tmp_path, f'name="{text}"', main="{}") == {"name": text}
    for other in ("'####'", "lab#7", "{a: '# b'}", "null", "~", '"---"', "a#b"):
        assert values(tmp_path, f"name={other}", main="{}") == without_nulls({"name": load(other)})


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("a:\n\tb: 1", "indent with spaces instead of tabs"),
        ("a: Think: now", "quote text that contains ': '"),
        ("a:\n  b: 1\n c: 2", "indent the keys of a section equally"),
        ("a: {b: ####}", "quote text that contains '#'"),
        ("a: [1, 2", "close the bracket"),
        ("a: 'x\nb: 1", "close the quotation mark"),
        ("a: @b", "quote the text"),
        ("a: 1\n---\nb: 2", "remove the line `---`"),
    ],
)
def test_a_syntax_error_comes_with_a_remedy(text: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=f"^line \\d+, column \\d+: .*: .*{re.escape(remedy)}"):
        load(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9" * 5000, "is not a valid int"),
        ("!!float abc", "'abc' is not a valid float"),
        ("!!timestamp 2020-01-01", "timestamp' is not supported"),
        ("[" * 60 + "]" * 60, "nested more than 50 levels deep"),
        ("[" * 2000 + "]" * 2000, "nested more than 50 levels deep"),
        ('"\\ud800"', "is not a valid str"),
    ],
    ids=lambda text: text[:20],
)
def test_unsupported_yaml_values_are_one_line_errors(tmp_path: Path, text: str, words: str) -> None:
    """The error is one short line, both for files and for overrides."""
    for overrides, main in (([], f"b: {text}\n"), ([f"b={text}"], "{}")):
        with pytest.raises(InputError) as caught:
            values(tmp_path, *overrides, main=main)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


# Imports


class Imports(Section):
    """A config with imports."""

    imports: list[str] = Field(default_factory=list)
    seed: int = 0


def test_lists_of_imports_add_up(tmp_path: Path) -> None:
    """Files are relative to the config that names them. Items of extended files come first, in order, without
    duplicates; the location of the list is that in the last file. `null` removes those of extended files."""
    (tmp_path / "base").mkdir()
    files = {
        "run": "extends: [base/b.yaml, base/none.yaml]\nimports: [shared.module, ../own.py, /else.py]",
        "base/a": "imports: [a.py, shared.module]",
        "base/b": "extends: a.yaml\nseed: 1\nimports:\n  - b.py\n  - a.py\n",
        "base/none": "seed: 2",
    }
    file, own = write(tmp_path, **files), f"{tmp_path.parent}/own.py"
    names = [f"{tmp_path}/base/a.py", "shared.module", f"{tmp_path}/base/b.py", own, "/else.py"]
    with contextlib.chdir(tmp_path):
        for path in (file, Path("run.yaml")):
            document = read_config(path)
            assert document.values == {"imports": names, "seed": 2}
            assert document.origin(("imports",)) == f"{path}:2"
    assert parse_config(document, Imports).imports == names
    null = {"over": "extends: null.yaml\nimports: [b.py]", "null": "extends: run.yaml\nimports: null"}
    assert values(tmp_path, **null) == {"imports": [f"{tmp_path}/b.py"], "seed": 2}


@pytest.mark.parametrize("value", ["{a: 1}", "3"])
@pytest.mark.parametrize("extends", ["", "extends: base.yaml\n"])
def test_imports_other_than_a_list_are_reported_by_the_schema(tmp_path: Path, value: Any, extends: str) -> None:
    """The error names file and line, even if an extended file has a valid list."""
    file = write(tmp_path, run=f"{extends}imports: {value}", base="imports: [a.py]")
    with pytest.raises(ConfigError, match=rf"^imports.* @ .*run\.yaml:{1 + bool(extends)}: must be ") as raised:
        parse_config(read_config(file), Imports)
    assert "\n" not in str(raised.value)


def test_files_are_read_once_and_values_are_limited_while_parsing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is extended twice is read once but merged twice, and a huge file is not parsed to its end."""
    from rg_env.core.config import files as config_files

    names: list[str] = []
    monkeypatch.setattr(
        config_files, "_read", lambda file, read=config_files._read: names.append(file.name) or read(file)
    )
    main = write(
        tmp_path,
        main="extends: [a.yaml, b.yaml]",
        a="extends: c.yaml\nx: 1\n",
        b="extends: c.yaml",
        c="x: 0\ny: {z: 1}",
    )
    assert read_config(main).values == {"x": 0, "y": {"z": 1}}
    assert sorted(names) == ["a.yaml", "b.yaml", "c.yaml", "main.yaml"]
    monkeypatch.setattr("rg_env.core.config.yaml12._MAX_VALUES", 100)
    assert load(json.dumps({str(n): n for n in range(99)}))["98"] == 98
    for text in (
        json.dumps({str(n): n for n in range(101)}),
        "- x\n" * 201 + "]",
    ):  # the error comes before the bracket
        with pytest.raises(ValueError, match="more than 100 values"):
            load(text)
