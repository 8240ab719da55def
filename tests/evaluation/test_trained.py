"""Tests of evaluating a checkpoint with the settings of its training run, on real runs of one step."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from user_code import nothing_left

from rg_env.cli.main import run as command
from rg_env.core.config import yaml12
from rg_env.core.data.dataset import build_splits
from rg_env.core.run_folder import RunFolder, json_lines
from rg_env.core.user_code import import_user_code, sealed, sources
from rg_env.errors import InputError
from rg_env.evaluation.config import EvalConfig
from rg_env.evaluation.load import load_eval_config
from rg_env.evaluation.questions import draw
from rg_env.evaluation.results import Results, read_results, results_files
from rg_env.evaluation.runner import run_evaluation
from rg_env.evaluation.trained import as_trained, trained_on
from rg_env.training.config.load import load_train_config
from rg_env.training.from_config import run_config

TINY = Path(__file__).parents[2] / "configs" / "train" / "tiny.yaml"
PROMPT = "Answer as <answer>N</answer>."
SHOTS = [{"role": "user", "content": "1 + 1 ="}, {"role": "assistant", "content": "<answer>2</answer>"}]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs") / "run"
    own = ["training.max_steps=1", "training.per_device_train_batch_size=8", "training.max_tokens=33", "seed=3",
           "training.top_k=3", "training.min_p=0.01", "training.repetition_penalty=1.05",
           "training.stop=['8</answer>']",
           "grading=partial", "splits.num_train_examples=64", "splits.num_eval_examples=12", "splits.eval_seed=5",
           f"prompt={{system_prompt: {json.dumps(PROMPT)}, placement: user, few_shot: {json.dumps(SHOTS)}}}",
           "rewards={correctness: 0.5, format: 0.2}",
           "tasks={leg_counting: {config: {min_animals: 1, max_animals: 2}}, chain_sum: {config: {max_terms: 2}}}",
           "evaluation={rollouts_per_example: 3, temperature: 0.8, num_held_out_examples: 5, tasks: "
           "{simple_equations: {}, short: {task: chain_sum, num_examples: 4}}}", f"output.dir={folder}"]  # fmt: skip
    run_config(load_train_config(TINY, own))
    return folder


def _config(folder: Path, models: dict[str, Any], *overrides: str) -> EvalConfig:
    return load_eval_config(None, [f"models={json.dumps(models)}", "tasks=leg_counting", "num_examples=5",
                           f"output.dir={folder}", *overrides])  # fmt: skip


def _all(folder: Path) -> Results:
    return read_results(results_files(folder)[0])


@pytest.mark.slow
def test_without_options_the_results_equal_the_runs_own(run: Path, tmp_path: Path) -> None:
    """Every answer is identical, on held-out and labeled tasks too, with the embedded engine on a CPU."""
    assert command(["eval", "--models", str(run), "--output-dir", str(tmp_path / "e")]) == 0
    ours, theirs = _all(tmp_path / "e"), read_results(run / "eval_results" / "eval_step_1.json")
    assert set(ours.tasks) == set(theirs.tasks) == {"leg_counting", "chain_sum", "simple_equations", "short"}
    for name, task in theirs.tasks.items():
        (own,), (recorded,) = ours.tasks[name].models.values(), task.models.values()
        assert own.correct.keys() == recorded.correct.keys()
        assert own.scores.model_copy(update={"guess_adjusted": None}) == recorded.scores
        assert {*map(str, own.correct.items())} == {*map(str, recorded.correct.items())}
    answers = list(json_lines(tmp_path / "e" / "rollouts.jsonl"))
    key = ("task", "draw", "row", "rollout", "completion", "reward")
    assert {tuple(each[k] for k in key) for each in answers} == {tuple(e[k] for k in key) for e in theirs.rollouts}


@pytest.mark.slow
def test_unset_options_are_those_of_the_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """These settings also apply to the model that it is compared with, and a note reports them. A run's folder means
    its last checkpoint."""
    results, folder = run_evaluation(_config(tmp_path / "e", {"base": "tiny", "ours": str(run)}))
    task = results.tasks["leg_counting"]
    assert (task.system_prompt, task.grading, task.sampling.max_tokens) == (PROMPT, "partial", 33)
    assert (task.sampling.temperature, task.sampling.rollouts_per_example, task.questions.n) == (0.8, 1, 5)
    assert (task.sampling.top_k, task.sampling.min_p, task.sampling.repetition_penalty) == (3, 0.01, 1.05)
    assert task.sampling.stop == ("8</answer>",)
    assert draw(as_trained(_config(tmp_path, {"ours": str(run)}))[0], "leg_counting").prompt(0)[1] == SHOTS[1]
    assert task.spec
    assert task.spec["config"].items() >= {"min_animals": 1, "max_animals": 2}.items()
    assert [model.source for model in task.models.values()] == ["tiny", str(run / "checkpoint-1")]
    (note,) = results.notes
    assert note.startswith(f"settings as in the training run of ours: prompt.system_prompt='{PROMPT}', prompt.")
    assert "rewards.correctness.weight=0.5" in note
    assert "sampling.top_k=3" in note
    assert "sampling.presence_penalty" not in note
    assert note in capsys.readouterr().out
    assert note in (folder / "summary.md").read_text()
    assert _all(folder).notes == [note]
    assert {(each.a, each.b) for each in results.comparisons} == {("ours", "base")}
    again, _ = run_evaluation(_config(tmp_path / "e", {"base": "tiny", "ours": str(run)}), resume=True)
    assert again.tasks == results.tasks


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, 3, 50])
def test_the_number_of_questions_applies_to_the_runs_own_tasks(run: Path, tmp_path: Path, number: int | None) -> None:
    """The number applies to all tasks, whether higher or lower than in the run; the run's numbers are the default."""
    given = [] if number is None else [f"num_examples={number}"]
    models = json.dumps({"ours": str(run)})
    config, _ = as_trained(load_eval_config(None, [f"models={models}", f"output.dir={tmp_path / 'e'}", *given]))
    counts = {name: config.count(name) for name in config.names}
    runs = {"leg_counting": 6, "chain_sum": 6, "simple_equations": 5, "short": 4}
    assert counts == (runs if number is None else dict.fromkeys(runs, number))


def test_a_checkpoint_without_its_run_is_noted(tmp_path: Path) -> None:
    for file in ("config.json", "resume.json"):
        (tmp_path / file).write_text("{}")
    _, notes = as_trained(_config(tmp_path, {"alone": str(tmp_path)}))
    (note,) = notes
    assert note.startswith("alone: not evaluated as in its training run, because the run's files are not next to")


@pytest.mark.slow
def test_values_in_the_config_take_precedence(run: Path, tmp_path: Path) -> None:
    """The config's own values have priority, and a note lists the differences. Models without a run change nothing."""
    own = ["grading=hardened", "sampling.max_tokens=90", "prompt.system_prompt=Think.", "rewards.correctness=1"]
    config, (first, second) = as_trained(_config(tmp_path, {"ours": str(run / "checkpoint-1")}, *own))
    assert (config.grading, config.sampling.max_tokens, config.prompt.system_prompt) == ("hardened", 90, "Think.")
    assert (config.prompt.placement, config.sampling.temperature, config.eval_seed) == ("user", 0.8, 5)
    assert "prompt.placement='user'" in first
    assert second.startswith("ours: trained with different values: prompt.system_prompt='Answer")
    assert "grading='partial'" in second
    assert "sampling.max_tokens=33" in second
    plain = _config(tmp_path, {"base": "tiny", "far": "m@http://127.0.0.1:9/v1"})
    assert as_trained(plain) == (plain, [])
    sized = _config(tmp_path, {"ours": str(run)}, "tasks={leg_counting: {config: {max_animals: 4}}}")
    assert as_trained(sized)[0].tasks["leg_counting"].config == {"max_animals": 4}


@pytest.mark.slow
def test_variables_of_the_chat_template_are_those_of_the_run(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    arguments = yaml12.load((copy / "arguments.yaml").read_text())
    prompt = arguments["eval_config"]["prompt"]
    assert prompt["chat_template_kwargs"] == {}
    prompt["chat_template_kwargs"] = {"enable_thinking": False}
    (copy / "arguments.yaml").write_text(yaml12.to_yaml(arguments))
    config, (note,) = as_trained(_config(tmp_path, {"ours": str(copy)}))
    assert config.prompt.chat_template_kwargs == {"enable_thinking": False}
    assert "prompt.chat_template_kwargs.enable_thinking=False" in note


@pytest.mark.slow
def test_a_damaged_run_is_one_error(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "arguments.yaml").write_text("eval_config: {tasks: 3}")
    with pytest.raises(InputError, match="is damaged: "):
        as_trained(_config(tmp_path / "e", {"ours": str(copy)}))


# Questions that are left out


REWARD = """
import rg_env

@rg_env.reward
def shouts(completion):
    return float(completion.isupper())
"""


@pytest.mark.slow
def test_custom_rewards_are_used_if_their_code_is_imported(run: Path, tmp_path: Path) -> None:
    """Otherwise, a note lists the missing rewards."""
    copy = shutil.copytree(run, tmp_path / "run")
    (tmp_path / "shouts.py").write_text(REWARD)
    arguments = yaml12.load((copy / "arguments.yaml").read_text())
    arguments["eval_config"]["rewards"] = {"shouts": {"weight": 0.25}}
    (copy / "arguments.yaml").write_text(yaml12.to_yaml(arguments))
    file = tmp_path / "eval.yaml"
    file.write_text(f"models: [{copy}]\noutput: {{dir: {tmp_path / 'e'}}}\n")
    plain, notes = as_trained(load_eval_config(file))
    assert "shouts" not in plain.rewards
    assert "run: evaluated without its training run's rewards, because the code for shouts is not imported" in notes[0]
    assert "pass --imports FILE" in notes[0]
    complete, notes = as_trained(load_eval_config(file, options={"imports": [str(tmp_path / "shouts.py")]}))
    assert complete.rewards["shouts"].weight == 0.25
    assert not any("not imported" in note for note in notes)


@pytest.mark.slow
def test_unchanged_code_of_ones_own_run_is_imported(run: Path, tmp_path: Path) -> None:
    """As in training, but only if the run bears this user's seal. A stranger's folder could name any file."""
    copy = shutil.copytree(run, tmp_path / "run")
    code = tmp_path / "shouts.py"
    code.write_text(REWARD)
    with nothing_left():
        import_user_code([str(code)])
        imports = {name: source for name, source in sources().items() if name == str(code)}
    arguments = yaml12.load((copy / "arguments.yaml").read_text())
    assert arguments["own_files"].keys() == {"imports", "data", "seal"}
    arguments["eval_config"]["rewards"] = {"shouts": {"weight": 0.25}}
    config = _config(tmp_path / "e", {"ours": str(copy)})

    def rewards(own_files: Any) -> set[str]:
        (copy / "arguments.yaml").write_text(yaml12.to_yaml({**arguments, "own_files": own_files}))
        with nothing_left():
            return set(as_trained(config)[0].rewards)

    own = sealed({"imports": imports, "data": None})
    assert rewards(own) == {"shouts"}
    for stranger in ({"imports": imports}, {**own, "seal": "0" * 64}, {**own, "data": "/etc/passwd"}, None, [3]):
        assert "shouts" not in rewards(stranger), stranger
    code.write_text(REWARD + "# edited\n")
    assert "shouts" not in rewards(own)


@pytest.mark.slow
def test_a_downloaded_run_does_not_choose_a_local_file_as_data(own: Path, tmp_path: Path) -> None:
    """The file exists, but the run is not sealed."""
    copy = shutil.copytree(own / "run", tmp_path / "run")
    arguments = yaml12.load((copy / "arguments.yaml").read_text())
    config = load_eval_config(None, [f"models=[{copy}]", f"output.dir={tmp_path / 'e'}"])
    assert as_trained(config)[0].data is not None
    for others in ({}, {**arguments["own_files"], "data": str(tmp_path / "other.jsonl")}):
        (copy / "arguments.yaml").write_text(yaml12.to_yaml({**arguments, "own_files": others}))
        with pytest.raises(
            InputError, match=r"sums.jsonl', in a run of another user or machine, so it is not read: pass"
        ):
            as_trained(config)


def _numbers(row: Any) -> tuple[int, ...]:
    return tuple(sorted(json.loads(row["info"]["entry"])["metadata"]["numbers"]))


def _checkpoint(folder: Path, rows: dict[str, Any] | None) -> str:
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "config.json").write_text("{}")
    (folder / "manifest.json").write_text(json.dumps({"rows": rows}))
    return str(folder / "checkpoint-1")


def test_problems_that_were_trained_on_are_left_out_in_any_order_of_numbers(tmp_path: Path) -> None:
    """With split_by=question, a problem that was trained on is left out even if its numbers are in another order."""
    train, _, manifest = build_splits("lcm", 400, 0, 0, split_by="question")
    questions = draw(load_eval_config(None, ["models=tiny", "tasks=lcm", "num_examples=60", "eval_seed=7"]), "lcm")
    known = {_numbers(row) for row in train}
    left_out = questions.among(trained_on(_checkpoint(tmp_path, manifest)))
    assert left_out == {number for number, row in enumerate(questions.rows) if _numbers(row) in known}
    words = {row["question"] for row in train}
    assert any(questions.rows[number]["question"] not in words for number in left_out)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on a file of one's own data, with a held-out task."""
    folder = tmp_path_factory.mktemp("own")
    rows = [{"problem": f"What is {a} + {b}?", "solution": f"#### {a + b}"} for a in range(1, 5) for b in range(1, 11)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["tasks=null", f"data={{path: {folder / 'sums.jsonl'}, question_column: problem, answer_column: solution, "
             "answer_after: '####'}", "splits.num_eval_examples=12", "splits.eval_seed=5", "training.max_steps=1",
             "training.per_device_train_batch_size=8", "training.max_tokens=33", f"prompt.system_prompt={PROMPT}",
             "rewards={correctness: 0.5}", "evaluation={tasks: {simple_equations: {}}, num_held_out_examples: 4}",
             f"output.dir={folder / 'run'}"]  # fmt: skip
    run_config(load_train_config(TINY, given))
    return folder


@pytest.mark.slow
def test_a_run_on_own_data_is_evaluated_on_it(own: Path, tmp_path: Path) -> None:
    """Without options, the results equal the run's own, and other models are evaluated with the same settings."""
    assert command(["eval", "--models", str(own / "run"), "tiny", "--output-dir", str(tmp_path / "e")]) == 0
    ours, theirs = _all(tmp_path / "e"), read_results(own / "run" / "eval_results" / "eval_step_1.json")
    assert list(ours.tasks) == sorted(theirs.tasks) == ["simple_equations", "sums"]
    assert {each["task"] for each in json_lines(own / "run" / "rollouts.jsonl")} == {"sums"}
    recorded_rows, left_over = RunFolder(own / "run").manifest()["own_rows"], {each["row"] for each in theirs.rollouts}
    assert (len(recorded_rows["train"]), len(recorded_rows["eval"])) == (28, 12)
    assert not left_over.intersection(recorded_rows["train"])
    (recorded,) = theirs.tasks["sums"].models.values()
    checkpoint, base = ours.tasks["sums"].models.values()
    assert (checkpoint.correct, checkpoint.scores) == (recorded.correct, recorded.scores)
    assert checkpoint.correct.keys() == base.correct.keys()
    assert ours.tasks["sums"].system_prompt == PROMPT
    assert max(each["reward"] for each in theirs.rollouts) <= 0.5


@pytest.mark.slow
def test_any_model_is_evaluated_on_own_data(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that a checkpoint was trained on are left out for this checkpoint. A dry run reports errors in the data."""
    columns = ["data.question_column=problem", "data.answer_column=solution", "data.answer_after='####'"]
    arguments = ["eval", "--models", "tiny", str(own / "run"), "--data", str(own / "sums.jsonl"), *columns]
    assert command([*arguments, "-n", "100", "--output-dir", str(tmp_path / "e")]) == 0
    base, ours = (each.scores for each in _all(tmp_path / "e").tasks["sums"].models.values())
    assert [(base.n, base.left_out), (ours.n, ours.left_out)] == [(40, 0), (12, 28)]
    assert command([*arguments, "--dry-run"]) == 0
    assert f"#   data        {own / 'sums.jsonl'} (up to 12 questions)" in capsys.readouterr().out
    (tmp_path / "bad.csv").write_text("question,answer\n1\n")
    with pytest.raises(InputError, match="line 2 has more or fewer columns"):
        command(["eval", "--models", "tiny", "--data", str(tmp_path / "bad.csv"), "--dry-run"])


@pytest.mark.slow
def test_own_data_that_was_changed_or_moved(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A note reports changed evaluation questions, and training questions are still left out. A missing file is
    reported with a fix."""
    monkeypatch.chdir(tmp_path)
    copy = shutil.copytree(own / "run", tmp_path / "run")
    arguments_file = yaml12.load((copy / "arguments.yaml").read_text())
    arguments_file["eval_config"]["data"]["path"] = "sums.jsonl"
    arguments_file["own_files"] = sealed({"imports": {}, "data": str(tmp_path / "sums.jsonl")})
    (copy / "arguments.yaml").write_text(yaml12.to_yaml(arguments_file))
    arguments = ["eval", "--models", "run"]
    with pytest.raises(InputError, match=r"^run/checkpoint-1 was trained on 'sums\.jsonl', which is not on"):
        command([*arguments, "--dry-run"])
    rows = [json.loads(line) for line in (own / "sums.jsonl").read_text().splitlines()]
    asked = [each["question"] for each in read_results(copy / "eval_results" / "eval_step_1.json").rollouts]
    removed, corrected, *_ = [row for row in rows if row["problem"] in asked]
    rows.remove(removed)
    corrected["solution"] = "#### 0"
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command([*arguments, "--output-dir", "e"]) == 0
    results = _all(tmp_path / "e")
    changed = "run: 2 of the 12 evaluation questions from its training run are missing or have different answers"
    (note,) = [each for each in results.notes if each.startswith(changed)]
    assert note.endswith(", because sums.jsonl was changed")
    assert note in capsys.readouterr().out
    (scores,) = (each.scores for each in results.tasks["sums"].models.values())
    assert (scores.n, scores.left_out) == (11, 1)


def test_a_run_without_a_record_of_its_own_rows(tmp_path: Path) -> None:
    """A note reports that the overlap is unknown, and the error for missing tasks mentions --data."""
    model = _checkpoint(tmp_path, None)
    (tmp_path / "config.yaml").write_text("data: x.csv")
    _, notes = as_trained(_config(tmp_path / "e", {"base": "tiny", "ours": model}))
    assert notes == [
        "ours: not evaluated as in its training run, which recorded no eval_config in arguments.yaml",
        "ours: its training questions are not recorded, so its overlap with the questions is unknown",
    ]
    with pytest.raises(InputError, match=r"tasks or data must be set, .*pass --tasks NAME or --data FILE"):
        as_trained(load_eval_config(None, [f"models={json.dumps({'ours': model})}", f"output.dir={tmp_path / 'e'}"]))


def test_missing_and_damaged_manifests(tmp_path: Path) -> None:
    """Without a record, no questions are left out; a damaged manifest is an error."""
    model = _checkpoint(tmp_path, None)
    assert trained_on(model) == trained_on(str(tmp_path)) == frozenset()
    for text in ('{"rows": {"splits": {"train": 3}}}', '{"rows": null, "own_rows": {"train": [{}]}}', "{", "[]"):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(InputError, match="damaged"):
            trained_on(model)
