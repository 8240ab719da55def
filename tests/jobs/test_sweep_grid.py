"""Tests of the points of a sweep, their names, and errors reported before any run starts."""

import itertools
import json
import string
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.config import yaml12
from rg_env.errors import ConfigError, InputError
from rg_env.jobs.sweep import MOST_CHARACTERS, difference, grid, load_sweep, override, parse_axes, train_command
from rg_env.training.config.load import load_train_config

CONFIG = "model: {name: tiny}\ntasks: {leg_counting: {}, chain_sum: {}}\ntraining: {max_steps: 20}\n"


@pytest.fixture(autouse=True)
def config(folder: Path) -> str:
    """Write a config to the working directory."""
    (folder / "run.yaml").write_text(CONFIG)
    return "run.yaml"


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(string.printable.replace("\x0b", "").replace("\x0c", "") + "éß€", max_size=12)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab:, ", min_size=1), inner, max_size=2),
)


def as_yaml(value: Any) -> str:
    """Format a value on one line, as PyYAML does between brackets."""
    text = yaml.dump([value], Dumper=yaml12.Dumper, default_flow_style=True, width=10**6).strip()
    assert text[0] + text[-1] == "[]"
    return text[1:-1]


@given(st.lists(values, min_size=1, max_size=4), st.sampled_from([",", " , ", ",  "]))
def test_values_are_split_as_yaml_separates_them(given_values: list[Any], separator: str) -> None:
    """Commas within brackets, braces and quotes do not separate values, and a run's override gives the same value."""
    swept = parse_axes([f"a.b={separator.join(map(as_yaml, given_values))}"])["a.b"]
    assert json.dumps(swept, sort_keys=True) == json.dumps(given_values, sort_keys=True)
    texts = [override("a.b", value).partition("=")[2] for value in swept]
    assert [yaml12.load(text) for text in texts] == swept


@given(st.text() | st.from_regex(r"[a-z.]{0,6}=[\[\]{}:,&*!#a-z0-9 '\"-]{0,14}", fullmatch=True))
def test_malformed_arguments_raise_only_input_errors(word: str) -> None:
    with suppress(InputError):
        (swept,) = parse_axes([word]).values()
        assert len(swept) > 0


def test_the_grid_is_the_product_with_seeds_innermost() -> None:
    """Seeds are innermost wherever `seed` is among the arguments."""
    points = grid(parse_axes(["seed=0,1,2", "training.learning_rate=1e-6,2e-6", "training.beta=0.0,0.1"]))
    assert [list(point.values.values()) for point in points] == [
        [rate, beta, seed] for rate, beta, seed in itertools.product([1e-6, 2e-6], [0.0, 0.1], [0, 1, 2])
    ]
    assert points[1].name == "learning_rate=1e-6_beta=0.0_seed=1"
    assert points[1].overrides == ("training.learning_rate=1e-06", "training.beta=0.0", "seed=1")
    assert [point.number for point in points] == list(range(1, 13))


@pytest.mark.parametrize(
    ("typed", "names"),
    [("3e-5,1e-4", ["3e-5", "1e-4"]), ("1e-3,2.5e-4", ["1e-3", "2.5e-4"]), ("0.001,0.01", ["0.001", "0.01"]),
     ("0.0,1e-4", ["0.0", "1e-4"]), ("1,0.5", ["1", "0.5"])],
)  # fmt: skip
def test_numbers_are_named_as_typed(typed: str, names: list[str]) -> None:
    """All values of a key have the same notation."""
    assert [point.name for point in grid(parse_axes([f"a={typed}"]))] == [f"a={name}" for name in names]


axes = st.dictionaries(
    st.lists(st.text("abAB.-é", min_size=1, max_size=5), min_size=1, max_size=3).map(".".join),
    st.lists(values | st.text(max_size=120), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)


@given(axes)
def test_names_are_distinct_portable_folder_names(axes: dict[str, list[Any]]) -> None:
    """Names are short, contain only safe characters, and are distinct even on case-insensitive file systems."""
    names = [point.name for point in grid(axes)]
    assert len({name.lower() for name in names}) == len(names)
    safe = set(string.ascii_letters + string.digits + "._=+-")
    for name in names:
        assert set(name) <= safe
        assert 0 < len(name) <= MOST_CHARACTERS
        assert name[0] not in ".-"
        assert "=" in name or name[0].isdecimal()  # so no run is named `logs`


UPLOADED = ["hub.enabled=true", "hub.repo_id=me/legs"]


@pytest.mark.parametrize(
    ("overrides", "words", "message"),
    [
        ("", "seed", "'seed' is not of the form section.key=value,value"),
        ("", "a..b=1", "is not of the form"),
        ("", "seed=1,", "is not of the form"),
        ("", "seed=1,,2", "write empty values as ''"),
        ("", "training.learning_rate=1e-6,0.000001", "learning_rate=1e-6 are the same run: remove one"),
        ("", "tasks=[a,[b", "is not a list of values"),
        ("", "data.answer_after=####,x", "('#' starts a comment in YAML): write empty values as '' and put text in"),
        ("", "seed=!!binary aGk=", "is not supported"),
        ("", f"seed={'[' * 60}{']' * 60}", "nested more than 50 levels deep"),
        ("", "seed=0,1; seed=2", "seed is swept twice: list all its values"),
        ("", "training={beta: 0.1}; training.beta=0.2", "but overlap"),
        ("", f"seed={','.join(map(str, range(1001)))}", "the sweep has 1,001 points (1001), more than 1,000"),
        ("", "output.dir=a,b", "each point gets its own folder in output.dir, so set output.dir to a single value"),
        # keys that are swept and overridden, or nested in each other, because one value would be lost
        ("seed=1", "seed=0,1", "is both swept and overridden: remove one"),
        ("training.beta=null", "training.beta=0.0,0.1", "is both swept and overridden: remove one"),
        ("lora={r: 4}", "lora.r=4,8", "is both swept and overridden: remove one"),
        ("tasks.leg_counting.weight=2", "tasks=[chain_sum],[leg_counting]", "is both swept and overridden: remove one"),
        # points that are invalid, or equal to another point
        ("", "training.max_stepz=1", "max_stepz=1: training.max_stepz = 1 @ command line: unknown key 'max_stepz'"),
        ("", "training.num_generations=8,7", "num_generations=7: training.rollouts_per_step: 128 rollouts are not div"),
        ("", "imports=[x]", "imports=x: override 'imports=[\"x\"]': imports can be set only in a config file"),
        ("", "tasks=leg_counting,[leg_counting]", "1_tasks=leg_counting and 2_tasks=leg_counting are the same run"),
        ("", "training.beta=null,0.1,0.0", "beta=null and beta=0.0 are the same run: remove one"),
        ("; ".join(UPLOADED), "seed=0,1", "hub.enabled: a repository can contain only one run"),
    ],
)
def test_invalid_sweeps_are_refused(config: str, overrides: str, words: str, message: str) -> None:
    """The one-line error names the argument or the point."""
    with pytest.raises(InputError) as caught:
        load_sweep(config, overrides.split("; ") if overrides else [], words.split("; "))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_valid_edge_cases_of_sweeps(config: str) -> None:
    """Overrides of other keys in a swept section are valid, and so are uploads of a single point or of none."""
    load_sweep(config, ["lora={alpha: 8}", "training.beta=0.1"], ["lora.r=4,8"])
    load_sweep(config, [*UPLOADED, "hub.enabled=false"], ["seed=0,1"])
    load_sweep(config, UPLOADED, ["seed=0"])


def test_all_mistakes_of_all_points_are_reported_at_once(config: str) -> None:
    """Each mistake is reported once, with the affected points."""
    words = ["training.beta=0.1,x", "training.num_generations=8,7", "seed=0,-1"]
    with pytest.raises(ConfigError) as caught:
        load_sweep(config, ["training.temperatur=1"], words)
    assert str(caught.value).splitlines() == [
        "run.yaml: 4 mistakes in the 8 points of the sweep",
        "  every point: training.temperatur = 1 @ command line: unknown key 'temperatur': did you mean 'temperature'?",
        "  beta=0.1_num_generations=8_seed=-1 and 3 more: seed = -1 @ command line: must be at least 0",
        "  beta=0.1_num_generations=7_seed=0 and 3 more: training.rollouts_per_step: 128 rollouts are not divisible by "
        "num_generations=7; try 112 or 168",
        "  beta=x_num_generations=8_seed=0 and 3 more: training.beta = 'x' @ command line: must be a number",
    ]


def test_points_are_checked_for_the_processes_that_train(config: str) -> None:
    words = ["training.per_device_train_batch_size=1,2"]
    sizes = ["training.rollouts_per_step=24", "training.num_generations=8"]
    load_sweep(config, sizes, words, processes=4)
    with pytest.raises(ConfigError, match=r"train_batch_size=2: .* divide each process's 3 rollouts per step"):
        load_sweep(config, sizes, words, processes=8)


@pytest.mark.parametrize(
    "words",
    [
        ["training.learning_rate=1e-6,2e-6", "seed=0,1"],
        ["tasks=[leg_counting, {name: gcd, weight: 2}],maze", "evaluation.tasks=null,[ab]"],
        ["lora=null,{r: 8}"],
        ["lora.r=4,8", "rewards.format=0.1,{weight: 0.2, when: answered}"],
        ["prompt.system_prompt='It''s \"1, 2\": #x',é", "model.name=tiny,a/b"],
        ["curriculum.tasks.chain_sum.start=0,1", "training.bf16=null,true"],
    ],
)
@pytest.mark.parametrize("name", ["plain", 'my team\'s "runs" #1, é'])
def test_a_run_is_started_with_the_config_that_was_checked(config: str, words: list[str], name: str) -> None:
    """Runs use the sweep's copy of the config, because the original may be edited while the sweep runs."""
    sweep = load_sweep(config, ["training.max_steps=17", "output.save_every=3"], words)
    folder = Path(name)
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml12.to_yaml(sweep.base()))
    Path(config).write_text("edited: since\n")
    for point, checked in zip(sweep.points, sweep.configs, strict=True):
        command = train_command(point, folder / point.name, resumes=True).arguments
        *_, resume, auto = command
        file, *overrides = command[command.index("train") + 1 : -2]
        assert (resume, auto, file) == ("--resume", "auto", f"{name}/config.yaml")
        started = load_train_config(file, overrides).resolved()
        assert started["output"].pop("dir") == f"{name}/{point.name}"
        assert started == checked.resolved()
        assert train_command(point, folder / point.name, resumes=False).arguments == command[:-2]


def test_differences_between_two_sweeps_are_described(config: str) -> None:
    """The output folder, logging and the server's address may differ."""
    rates = ["training.learning_rate=1e-6,2e-6"]

    def base(*overrides: str) -> dict[str, Any]:
        return load_sweep(config, overrides, rates).base()

    assert difference(base("output.dir=a", "engine.port=1"), base("logging.project=p", "output.save_every=1")) == ""
    message = "seed was 0 before and is 1 now, training.max_steps was 15 before and is 20 now"
    assert difference(base("training.max_steps=15"), base("seed=1")) == message
    assert difference(base(), base("lora.r=4")).startswith("lora.r was not given before and is 4 now, lora.alpha")
    assert difference(base(), base("lora.r=4")).endswith(" and 1 more")
