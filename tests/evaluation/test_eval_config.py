"""Tests of evaluation configs: their meaning, and errors that name the key, value and location."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rg_env.cli.main import run
from rg_env.core.tasks.task_table import load_table
from rg_env.errors import ConfigError, InputError
from rg_env.evaluation.config import name_of, split_address
from rg_env.evaluation.load import load_eval_config
from rg_env.tiny import TASKS

REPOSITORY = Path(__file__).parents[2]
CONFIGS = sorted((REPOSITORY / "configs" / "eval").rglob("*.yaml"))
LEAST = ["models=tiny", "tasks=leg_counting"]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.name)
def test_shipped_configs_load_and_reload(file: Path, tmp_path: Path) -> None:
    """An evaluation can be repeated from its resolved config. Models can be added with an override, as the comments in
    these files describe."""
    config = load_eval_config(file)
    more = load_eval_config(file, ["models.trained=outputs/RUN/checkpoint-25", "models.api=m@http://127.0.0.1:1/v1"])
    assert [*more.models] == [*config.models, "trained", "api"]
    assert more.models["api"].url == "http://127.0.0.1:1/v1"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_eval_config(tmp_path / "config.yaml") == config


def test_default_names_of_models(tmp_path: Path) -> None:
    """A checkpoint's name includes its run's, because checkpoints of all runs have names such as checkpoint-25."""
    (tmp_path / "mine").mkdir()
    given = ["tiny", "outputs/run/checkpoint-25", str(tmp_path / "mine"), "./gone", "Qwen/Qwen2.5-3B-Instruct",
             "gpt@https://x.com/v1"]  # fmt: skip
    assert [name_of(each) for each in given] == [
        "tiny", "run/checkpoint-25", "mine", "gone", "Qwen/Qwen2.5-3B-Instruct", "gpt"]  # fmt: skip


@given(st.text(st.characters(exclude_characters="@"), min_size=1), st.text(max_size=20))
def test_addresses_are_split_into_model_and_url(model: str, rest: str) -> None:
    assert split_address(model) == {"model": model}
    if "@http" not in rest:
        assert split_address(f"{model}@http{rest}") == {"model": model, "url": f"http{rest}"}


def test_the_tiny_policy_is_evaluated_on_its_own_task_sizes() -> None:
    """Without a task config, all models get the tiny policy's task sizes if it is among them."""
    assert load_eval_config(None, LEAST).gym("leg_counting")["config"] == TASKS["leg_counting"]
    sized = load_eval_config(None, [*LEAST, "tasks={leg_counting: {config: {max_animals: 2}}}"])
    assert sized.gym("leg_counting")["config"] == {"max_animals": 2}
    assert load_eval_config(None, ["models=other", "tasks=leg_counting"]).gym("leg_counting")["config"] == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["models=tiny"], "tasks: is required: list at least one task, or set data (there"),
        (["models={a: tiny, b: out}"], "a training run: the run's tasks; out: no such folder)"),
        (["models=tiny", "data=x.csv", "tasks.x={task: maze}"], "tasks.x = {'task': 'maze'} @ command line: is the"),
        (["tasks=maze"], "models: is required"),
        (["models=[a/b, a/b]", "tasks=maze"], "two models would have the same name"),
        (["models=[{model: x}]", "tasks=maze"], "a list of models can contain only names, folders and MODEL@URL"),
        ([*LEAST, "eval_repeats=3"], "use rollouts_per_example"),
        (["models=tiny", "categories=[]"], "this is a config for Reasoning Gym's own evaluation: use configs/eval/"),
        (['models.a={model: x, url: "http://x/v1\\nHost: y"}', "tasks=maze"], "must be the URL of an endpoint"),
        (["models=tiny@127.0.0.1:8011", "tasks=maze"], "pass the complete URL: NAME@http://127.0.0.1:8011"),
        (["models=tiny", f"tasks.{'語' * 80}={{task: maze}}"], "at most 80 characters and 200 bytes"),
        (["models=tiny", "tasks.all_tasks={task: maze}"], "is the name of the files that cover all tasks"),
        ([*LEAST, "num_examples=2000000000"], "leg_counting has more than 10,000,000 answers"),
        (["models.a={model: x, key_variable: K}", "tasks=maze"], "is only for endpoints: set url"),
        (['models={" a": {model: x}}', "tasks=maze"], "or a leading space"),
        (["models=tiny", "tasks=mase"], "did you mean 'maze'?; for your own label, set task: NAME"),
        (["models=tiny", "tasks.a/b={task: maze}"], "a label may contain only letters"),
        (["models=tiny", "tasks.x={task: mase}"], "tasks.x.task = 'mase'"),
        (["models=tiny", "tasks.maze={config: {min_grid: 3}}"], "tasks.maze.config.min_grid = 3"),
        ([*LEAST, "sampling.temperature=0", "rollouts_per_example=2"], "all answers are the same"),
        (["models=tiny", "tasks.gcd.sampling.temperature=0", "rollouts_per_example=2"], "all answers are the same"),
        ([*LEAST, "rewards={}"], "is empty: add a reward"),
        ([*LEAST, "rewards.corectness=1"], "did you mean 'correctness'"),
        ([*LEAST, "serving.gpus=[0, 0]"], "must list at least one GPU"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_with_their_location(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_eval_config(None, overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://user:s3cret@x/v1", "http://s3cret@x/v1", "https://x/v1?key=s3cret", "http://x/v1#s3cret",
     "http://u:s3cret@[::1/v1"],
)  # fmt: skip
@pytest.mark.parametrize("form", ["models.a={{model: m, url: '{}'}}", "models=['m@{}']", "models.a='m@{}'"])
def test_a_secret_in_an_address_is_refused_and_not_shown(url: str, form: str) -> None:
    """Resolved configs are written to files, and errors to logs, so neither may contain the secret."""
    with pytest.raises(ConfigError, match=r"url.*contains a password or a query: put the key in an environm") as caught:
        load_eval_config(None, [form.format(url), "tasks=maze"])
    assert "s3cret" not in str(caught.value)


def test_a_missing_config_file_is_reported(tmp_path: Path) -> None:
    """The error suggests the most similar file name in the folder."""
    with pytest.raises(InputError, match=r"cannot read the config .*No such file or directory$"):
        load_eval_config(tmp_path / "none.yaml")
    (tmp_path / "sums.yaml").touch()
    (tmp_path / "sumx").mkdir()
    with pytest.raises(InputError, match=r"No such file or directory; did you mean \S+/sums\.yaml\?$"):
        load_eval_config(tmp_path / "sum.yaml")


def test_a_category_means_all_its_tasks() -> None:
    """A category's options apply to each of its tasks unless the task has its own entry, and a label may be named like
    a category."""
    names = [name for name, entry in load_table().items() if entry["category"] == "games"]
    tasks = "tasks={games: {num_examples: 5}, maze: {num_examples: 3}, gcd: {}}"
    config = load_eval_config(None, ["models=other", tasks])
    assert sorted(config.tasks) == sorted([*names, "gcd"])
    assert {name: config.count(name) for name in names} == {**dict.fromkeys(names, 5), "maze": 3}
    assert list(load_eval_config(None, ["models=other", "tasks={games: {task: maze}}"]).tasks) == ["games"]


@pytest.mark.parametrize(
    ("config", "names", "expected"),
    [
        ("paper_tables", ["spell_backward_4"], {"spell_backward_4": {"min_word_len": 4, "max_word_len": 4}}),
        ("paper_tables", ["maze", "gcd"], {"maze": {}, "gcd": {}}),
        ("paper_tables", ["arithmetic"], {"prime_factorization": {"min_value": 2, "max_value": 1000}}),
        ("paper_inter", ["binary_matrix"], {"binary_matrix": {"min_n": 2, "max_n": 6}}),
        ("paper_inter", ["geometry"], {"advanced_geometry": {}, "simple_geometry": {}}),
        ("seven_tasks", ["geometry"], {"simple_geometry": {}}),
    ],
)  # fmt: skip
def test_names_select_from_the_tasks_of_a_config(config: str, names: list[str], expected: dict[str, object]) -> None:
    """The tasks keep the options of the config. `tasks=...` replaces them instead, like any other override."""
    file = REPOSITORY / "configs" / "eval" / f"{config}.yaml"
    selected = load_eval_config(file, options={"tasks": names})
    assert {name: task.config for name, task in selected.tasks.items()} == expected
    assert {*load_eval_config(file, ["tasks=[maze]"]).tasks} == {"maze"}


def test_files_with_own_rewards_can_be_passed_as_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are added to those of the config, and paths are relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two", "three"):
        Path(f"{name}.py").write_text(f"import rg_env\nrg_env.reward('{name}')(lambda rollout: 1.0)\n")
    Path("eval.yaml").write_text(
        "models: [tiny]\ntasks: [gcd]\nimports: [one.py]\nrewards: {one: 1, two: 1, three: 1}\n"
    )
    assert run(["eval", "eval.yaml", "--imports", "two.py", "--imports", "three.py", "--dry-run"]) == 0
    imports = yaml.safe_load(capsys.readouterr().out)["imports"]
    assert imports == [str(tmp_path / f"{name}.py") for name in ("one", "two", "three")]


def test_files_of_held_out_tasks_can_be_evaluated(tmp_path: Path) -> None:
    """A file written for training runs can be extended; the file's own tasks add to it, and overrides keep other
    options."""
    held_out = REPOSITORY / "configs" / "tasks" / "held_out" / "graphs.yaml"
    file = tmp_path / "eval.yaml"
    file.write_text(f"extends: {held_out}\nmodels: [other]\ntasks: {{maze: {{}}}}\n")
    expected = yaml.safe_load(held_out.read_text())["evaluation"]["tasks"]
    assert [*load_eval_config(file).tasks] == [*expected, "maze"]
    file.write_text("models: [other]\nevaluation: {every: 5}\ntasks: [maze]\n")
    with pytest.raises(ConfigError, match="evaluation"):
        load_eval_config(file)
    override = "tasks.binary_matrix.num_examples=5"
    paper = load_eval_config(REPOSITORY / "configs" / "eval" / "paper_inter.yaml", [override])
    assert len(paper.tasks) == 56
    assert (paper.tasks["binary_matrix"].num_examples, paper.tasks["binary_matrix"].config["max_n"]) == (5, 6)


def test_a_dry_run_prints_the_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The plan has the numbers of calls and tokens, and errors that would stop the evaluation at its start are
    raised."""
    arguments = ["eval", "--models", "a", "b", "--tasks", "maze,gcd", "--limit", "10", "-r", "2", "--max-tokens", "50"]
    assert run([*arguments, "greedy=true", "--dry-run", "--output-dir", str(tmp_path / "e")]) == 0
    text = capsys.readouterr().out
    for line in (
        "#   models      a, b",
        "#   tasks       maze (10), gcd (10)",
        "#   answers     2 sampled and 1 greedy per question; grading mode: hardened",
        "#   calls       120, with up to 6,000 answer tokens",
        f"#   output      {tmp_path / 'e'}",
    ):
        assert f"{line}\n" in text
    for options, message in (
        (["--resume"], "--resume needs output.dir"),
        (["--output-dir", str(tmp_path)], "is not empty"),
    ):
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match=message):
            run([*arguments, "--dry-run", *options])
    with pytest.raises(ConfigError, match="tasks: is required"):
        run(["eval", "--models", "a", "--dry-run"])


@pytest.mark.parametrize("dry_run", [["--dry-run"], []], ids=["dry run", "run"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "--models", "outputs/RUN/checkpoint-9", "--tasks", "maze"], "folder outputs/RUN/checkpoint-9 does"),
        (["eval", "--models", "tiny", "outputs/RUN", "--tasks", "maze"], "the folder outputs/RUN does not exist$"),
        (["eval", "--models", "outputs/RUN/checkpoint-9"], "folder outputs/RUN/checkpoint-9 does not exist$"),
        (["eval", "--models", "."], r"[^\n]*: \. is not a model folder: config.json and safetensors files"),
        (["eval", "models.a={model: M, url: https://example.org/v1, key_variable: NO_SUCH_KEY}", "--tasks", "maze"],
         r"^https://example.org/v1: the environment variable NO_SUCH_KEY is not set: set it to the endpoint's key, or"),
        (["probe", "--tasks", "maze", "--model", "/no/such/model"], r"^the folder /no/such/model does not exist$"),
        (["eval", "--models", ""], r"^models = \[''\] @ command line: model must not be empty$"),
        (["eval", "--models", "a", "tasks.maze.config.min_dist=0"],
         r"^tasks.maze.config: task 'maze' does not work with config .*: min_dist must be >= 1$"),
        (["eval", "--models", "a", "tasks.maze.config.min_dist=far"],
         r"^tasks.maze.config: task 'maze' does not work with config .*: 'far' must be a number, like the default 5$"),
    ],
)  # fmt: skip
def test_missing_inputs_are_reported_before_the_start(arguments: list[str], message: str, dry_run: list[str]) -> None:
    """Missing model folders and API keys are also reported in a dry run."""
    with pytest.raises(InputError, match=message):
        run([*arguments, *(dry_run if arguments[0] == "eval" else [])])


@pytest.mark.parametrize("command", ["eval", "train"])
def test_what_only_the_start_used_to_find_is_found_before(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing checkpoint of a run in the working directory looks like a name on the Hub. A reward may need what only
    Verifiers' v0 API provides."""
    monkeypatch.chdir(tmp_path)
    Path("RUN").mkdir()
    Path("RUN/metrics.jsonl").touch()
    Path("own.py").write_text("import rg_env\n@rg_env.reward\ndef of_state(state): return 0.0\n")
    config = {"tasks": "maze", "imports": ["own.py"]}
    config |= {"model": {"name": "tiny"}, "training": {"max_steps": 1}} if command == "train" else {"models": ["tiny"]}
    Path("own.yaml").write_text(yaml.safe_dump(config))
    model = "model.name=RUN/checkpoint-9" if command == "train" else "models=[RUN/checkpoint-9]"
    with pytest.raises(InputError, match=r"the folder RUN/checkpoint-9 does not exist$"):
        run([command, "own.yaml", model, "--dry-run"])
    with pytest.raises(InputError, match=r"rewards.of_state.*: reward 'of_state' needs 'state', which this env"):
        run([command, "own.yaml", "rewards.of_state=1.0", "--dry-run"])


def test_overrides_may_follow_lists_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    """argparse would treat an override after a list as another model or task, which would be looked up on the Hub."""
    arguments = ["--models", "tiny", "grading=partial", "--tasks", "maze", "sampling.top_p=0.5"]
    assert run(["eval", *arguments, "seed=7", "--dry-run"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert ([*config["models"]], [*config["tasks"]]) == (["tiny"], ["maze"])
    assert (config["grading"], config["sampling"]["top_p"], config["seed"]) == ("partial", 0.5, 7)
    assert run(["eval", "--tasks", "maze", "models.a=M", "models.b=M=1@http://localhost/v1", "--dry-run"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert {name: each["model"] for name, each in config["models"].items()} == {"a": "M", "b": "M=1"}
    assert run(["eval", "--models", "M=1", "seed/=1", "--tasks", "maze", "--dry-run"]) == 0
    assert [*yaml.safe_load(capsys.readouterr().out)["models"]] == ["M=1", "seed/=1"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--models", "tiny", "models.b=tiny", "--tasks", "maze"],
        ["--models", "tiny", "--tasks", "maze", "gcd", "tasks.maze.level=1"],
        [str(CONFIGS[-1]), "models.b=tiny", "--models", "M"],
    ],
)
def test_no_model_or_task_is_dropped_silently(arguments: list[str]) -> None:
    """Combining a list with a single entry is an error, because one would replace the other."""
    with pytest.raises(InputError, match=r"^--(models|tasks) and .*; set each item as (models|tasks)\.NAME=\.\.\.$"):
        run(["eval", *arguments, "--dry-run"])
