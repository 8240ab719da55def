"""Tests of the model card: it reports only what the run's files contain, and treats their text as data."""

import contextlib
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_runs import CONFIG
from hub_server import HubServer
from huggingface_hub import ModelCard, ModelCardData, snapshot_download
from run_metrics import evaluation_of
from transformers import AutoModelForCausalLM

from rg_env.core.data.manifest import split_hash
from rg_env.core.environment import Environment
from rg_env.core.run_folder import RunFolder
from rg_env.errors import InputError, repository_command
from rg_env.evaluation import trained
from rg_env.evaluation.load import load_eval_config
from rg_env.evaluation.results import read_results
from rg_env.evaluation.scores import together
from rg_env.publish.card import find_license
from rg_env.publish.checkpoint import Base
from rg_env.publish.contents import publishable
from rg_env.publish.push import PushRequest, preview
from rg_env.tiny import POLICY_DIR
from rg_env.training import EvaluationPlan, load_train_config, run_config, train

NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
FALSE_CLAIMS = "Reasoning Gym|reasoning-gym\n|`default`|`None`|not recorded"
"""Text that the card of a run on one's own data must not contain."""
PROSE = {"95", "256"}
"""Numbers in the card's own text: 95% intervals and SHA-256."""


def card_of(path: Path, **request: Any) -> str:
    """Return the card that pushing `path` would upload."""
    shown = preview(PushRequest(path, "me/legs", **request))
    return shown[shown.index("---\n") :]


def numbers_in(value: object) -> Iterator[float]:
    """Yield all numbers in plain values, including those in strings."""
    if isinstance(value, dict):
        yield from numbers_in([*value, *value.values()])
    elif isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, str):
        yield from (float(found.replace(",", "").rstrip(".")) for found in NUMBER.findall(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def edited(run: Path, name: str, **values: Any) -> dict[str, Any]:
    """Change sections of one of the run's YAML files and return the new contents."""
    found: dict[str, Any] = yaml.safe_load((run / name).read_text())
    for key, value in values.items():
        found[key] = {**(found.get(key) or {}), **value} if isinstance(value, dict) else value
    (run / name).write_text(yaml.safe_dump(found))
    return found


@pytest.mark.slow
def test_a_dry_run_leaves_the_card_to_edit(trained: Path, tmp_path: Path) -> None:
    """A card that exists is kept, and an edited card is what a push with --card uploads. If the questions of the
    user's own data would be public, a warning says so."""
    run, draft = shutil.copytree(trained, tmp_path / "run"), tmp_path / "run/card.md"
    draft.unlink(missing_ok=True)
    first = preview(PushRequest(run, "me/legs"))
    assert draft.read_text() == first[first.index("---\n") :]
    assert f"add --card {draft})" in first
    assert "WARNING" not in first
    draft.write_text("---\nlicense: mit\n---\n# Mine\n")
    assert f"an earlier card is kept in {draft}" in preview(PushRequest(run, "me/legs"))
    assert preview(PushRequest(run, "me/legs", card=draft)).endswith("# Mine\n")
    with pytest.raises(InputError, match=r"--card .*none\.md cannot be read: No such file"):
        preview(PushRequest(run, "me/legs", card=tmp_path / "none.md"))
    edited(run, "config.yaml", data={"path": "p4.jsonl"}, splits={"num_eval_examples": 60})
    warning = (
        "WARNING: questions from your own data (p4.jsonl) would be public: `run/eval_results` contains the 60 questi"
    )
    assert warning in preview(PushRequest(run, "me/legs"))
    assert "WARNING" not in preview(PushRequest(run, "me/legs", private=True))


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 4])
def test_every_number_is_in_the_runs_files(trained: Path, step: int) -> None:
    """Numbers on the card are in the run's files or computed from them by rg_env's statistics."""
    body = card_of(trained / f"checkpoint-{step}", optimizer_state="full")
    run = RunFolder(trained)
    sides = {name: read_results(run.evaluation_file(at)) for name, at in (("before", 0), ("after", step))}
    manifest, compared = run.manifest(), together(sides).model_dump(mode="json")
    known = [*numbers_in([run.config(), run.arguments(), manifest, run.results(), run.metrics(), compared])]
    hashes = [split_hash(manifest["rows"], split) for split in ("train", "eval")]
    hashes += [split_hash(rows, "eval") for rows in manifest["evaluation_rows"]]
    for text in (*hashes, manifest["platform"], f"checkpoint-{step}"):
        body = body.replace(text, "")
    shown = [number for number in NUMBER.findall(body) if number not in PROSE]
    assert len(shown) > 80
    for number in shown:
        digits = len(number.partition(".")[2]) if "e" not in number else 12
        assert any(round(each, digits) == float(number.replace(",", "")) for each in known), number


@pytest.mark.slow
def test_tables_and_metadata_have_the_recorded_results(trained: Path) -> None:
    """The tables cover each training task, the tasks' mean, held-out tasks and labeled tasks."""
    found = card_of(trained)
    after = evaluation_of(trained, 4)
    scores = after["tasks"]["leg_counting"]
    row = next(line for line in found.splitlines() if line.startswith("| `leg_counting`, greedy |"))
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert cells[1] == str(scores["n"])
    assert cells[3].startswith(f"{scores['greedy_accuracy']:.3f} \\[")
    order = ["**Tasks it was trained on**", f"| mean of the tasks, sampled | {after['n']} |",
             "**Tasks it was not",
             "| `simple_equations`, ", "**Other questions, ", "| `long_sums`, sampled | 5 |"]  # fmt: skip
    positions = [found.index(part) for part in order]
    assert positions == sorted(positions)

    data = ModelCard(found).data
    assert isinstance(data, ModelCardData)
    assert data.eval_results
    values = {(each.dataset_config, each.metric_name): each.metric_value for each in data.eval_results}
    parts = (after["tasks"], after["held_out"]["tasks"], after["labelled"])
    assert values == {
        (name, f"accuracy, {kind}"): round(scores[key], 4)
        for part in parts
        for name, scores in part.items()
        for kind, key in (("sampled", "accuracy"), ("greedy", "greedy_accuracy"))
    }
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "transformers", "text-generation")
    assert data.model_name == "legs"
    assert data.base_model is None, "the tiny policy is not on the Hub"


@pytest.mark.slow
def test_the_card_has_what_a_reader_needs(trained: Path) -> None:
    found = card_of(trained, optimizer_state="full")
    for text in (
        "the tiny policy that is included in rg-env",
        "License of the base model: `apache-2.0`",
        "![Learning curve of the run](reward_curve.png)",
        f"{repository_command('train')} ",
        "hf download me/legs --local-dir legs\n",
        'AutoModelForCausalLM.from_pretrained("me/legs")',
        "rg-env train legs/run/config.yaml --eval-only --checkpoint legs ",
        "--resume auto output.dir=legs/run training.max_steps=MORE",
        "Grading `hardened`: correct or not",
        "- None of the sampled answers were cut off at the limit of 60 tokens",
        "safety were not measured",
        "| CPU cores | ",
        "| `torch` | `",
    ):
        assert text in found, text
    assert "Nothing was measured on tasks that the model was not trained on" not in found
    assert not re.search(r"\bNone\b(?! of)", found)
    earlier = card_of(trained / "checkpoint-2", optimizer_state="full")
    assert "These are the weights from step 2; the run continued to step 4." in earlier
    assert "output.dir=legs/run\n" in earlier, "there are steps left"


@pytest.mark.slow
def test_the_card_of_a_scripts_run(run: Path) -> None:
    """A script's run has only the environment's settings in config.yaml and no config to run again."""
    edited(run, "arguments.yaml", environment={"grading": "upstream"})
    (run / "arguments.yaml").rename(run / "config.yaml")
    found = card_of(run, optimizer_state="full")
    assert "- Grading `upstream`: " in found
    assert "| `grading` | `upstream` |" in found
    assert "rg-env train" not in found
    assert "Pass `--resume legs/run/checkpoint-4` to the training script." in found


@pytest.mark.slow
def test_what_is_missing_is_stated(run: Path) -> None:
    """The card states that a run was stopped, failed, did not end, needs the author's code, or did not evaluate the
    weights."""
    results = json.loads((run / "train_results.json").read_text())
    results |= {"stopped_by": "kl_spike", "monitors": ["step 3: *kl* | rose"], "interrupted": True, "error": "a <b>"}
    (run / "train_results.json").write_text(json.dumps(results))
    edited(run, "config.yaml", imports=["/home/me/my_rewards.py"])
    found = card_of(run)
    for text in ("stopped by the monitor `kl_spike`", r"A monitor reported: `step 3: *kl* \| rose`", "was interrupted",
                 "weights after step 4.\n", "with an error: `a <b>`",
                 "own code, `my_rewards.py`, which is not included"):  # fmt: skip
        assert text in found
    (run / "eval_results/eval_step_4.json").unlink()
    (run / "train_results.json").unlink()
    shutil.copytree(POLICY_DIR, run / "half")
    for path, text in (
        (run, "**These weights, from step 4, were not evaluated**"),
        (run, "unknown: the run had not ended"),
        (run / "half", "**The training step of these weights is unknown**"),
    ):
        found = card_of(path)
        assert text in found
        assert "model-index" not in found
    shutil.rmtree(run / "eval_results")
    assert "The run did not evaluate these weights" in card_of(run)


@pytest.mark.slow
def test_results_are_not_claimed_for_rounded_weights(run: Path) -> None:
    """An export in half precision was not evaluated by the run; one in full precision has the evaluated weights."""
    for dtype in ("float32", "bfloat16"):
        folder = run / f"checkpoint-4-{dtype}"
        AutoModelForCausalLM.from_pretrained(run / "checkpoint-4", dtype=dtype).save_pretrained(folder)
        found = card_of(folder)
        rounded = dtype == "bfloat16"
        assert ("**Measured before these weights were rounded to `BF16`**" in found) == rounded
        assert ("model-index" not in found) == rounded
        assert "after 4 steps" in found


@pytest.mark.slow
def test_the_cards_program_prompts_the_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The card's program uses the run's first prompt, whose text cannot break out of the program."""
    messages = [{"role": "user", "content": "Say \"so\":\n```\nthen ''' <answer>1</answer>."}]
    edited(run, "arguments.yaml", environment={"first_prompt": messages})
    (program,) = re.findall(r"^````+python\n(.*?)^````+$", card_of(run), re.DOTALL | re.MULTILINE)
    variables: dict[str, Any] = {}
    exec(program.replace("me/legs", str(run / "checkpoint-4")), variables)
    assert variables["messages"] == messages
    assert capsys.readouterr().out.strip()
    assert variables["answer"].shape[1] <= variables["inputs"]["input_ids"].shape[1] + 60


@pytest.mark.slow
def test_the_cards_command_evaluates_as_the_run_did(run: Path, hub: HubServer, pushed: Any, tmp_path: Path) -> None:
    """With the options in the card's command, `rg-env eval` uses the downloaded run's prompt, token limit and task
    options."""
    prompt = 'It\'s "one": $HOME\nthen <answer>your answer here</answer>.'
    edited(
        run, "arguments.yaml", environment={"system_prompt": prompt}, eval_config={"prompt": {"system_prompt": prompt}}
    )
    edited(run, "config.yaml", prompt={"system_prompt": prompt})
    pushed(run)
    folder = Path(snapshot_download("me/legs", endpoint=hub.url, local_dir=tmp_path / "legs"))
    (line,) = re.findall("^rg-env eval .*", (folder / "README.md").read_text(), re.MULTILINE)
    options = dict(re.findall(r"--(\w+) ([^-#]+)", line))
    words = [f"{key}={json.dumps(shlex.split(value))}" for key, value in options.items()]
    with contextlib.chdir(tmp_path):
        found, _ = trained.as_trained(load_eval_config(None, words))
        assert trained.trained_on("legs"), "they are left out"
    trained_on = {task["name"]: task["config"] for task in RunFolder(run).manifest()["rows"]["tasks"]}
    assert {name: task.config for name, task in found.tasks.items()} == trained_on
    assert trained_on["leg_counting"]["max_animals"] == 3, "not the default"
    assert (found.prompt.system_prompt, found.sampling.max_tokens) == (prompt, 60)


@pytest.mark.slow
def test_text_from_files_is_not_interpreted_as_markup(run: Path) -> None:
    """Names, options and prompts that look like markup are shown literally, and the metadata stays valid."""
    evil = 'x`|\n---\n# owned <script>alert(1)</script> [click](http://evil) "quoted": {{'
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["rows"]["tasks"][0] |= {"name": evil, "config": {evil: evil}}
    manifest["versions"][evil] = evil
    manifest["hardware"]["gpus"] = [evil]
    (run / "manifest.json").write_text(json.dumps(manifest))
    for file in run.glob("eval_results/*.json"):
        values = json.loads(file.read_text())
        values["tasks"][evil] = values["tasks"].pop("leg_counting")
        for record in values["rollouts"]:
            record["task"] = evil if record["task"] == "leg_counting" else record["task"]
        file.write_text(json.dumps(values))
    edited(run, "arguments.yaml", environment={"system_prompt": f"```\n{evil}\n```"})
    found = card_of(run)
    data = ModelCard(found).data
    assert isinstance(data, ModelCardData)
    assert data.eval_results, "the metadata is valid"
    body = found[4:].partition("\n---\n")[2]
    outside = re.sub(r"(?ms)^(````?)\w+$.*?^\1$", "", body)
    assert "\n# owned" not in outside
    outside = re.sub(r"(?<![\\`])(`+)(?!`).+?(?<!`)\1(?!`)", "", outside)
    assert "<script>" not in outside
    assert "[click](" not in outside
    rows = [line for line in body.splitlines() if line.startswith("| ``") and "owned" in line]
    assert rows
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {3, 5, 7}, "no cells were added"


@pytest.mark.slow
def test_the_card_of_a_run_on_own_data(tmp_path: Path) -> None:
    """The card names the data file and does not mention Reasoning Gym."""
    rows = [{"question": f"{number} + 1", "answer": number + 1} for number in range(30)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ["tasks=null", f"data={tmp_path / 'sums.jsonl'}", "splits.num_eval_examples=6", "training.max_steps=1",
           "training.rollouts_per_step=8", "training.per_device_train_batch_size=8", "training.max_tokens=8",
           "evaluation.tasks=null", f"output.dir={tmp_path / 'run'}"]  # fmt: skip
    run_config(load_train_config(CONFIG, own))
    found = card_of(tmp_path / "run")
    data = ModelCard(found).data
    assert isinstance(data, ModelCardData)
    assert {(each.dataset_name, each.dataset_type) for each in data.eval_results or ()} == {("sums.jsonl",) * 2}
    assert "reasoning-gym" not in data.tags
    shown = "`run/eval_results` contains the 6 questions used only for evaluation, with answers"
    for text in (
        "A model trained with GRPO on the author's own data (`sums.jsonl`) with rg-env.",
        "| `sums.jsonl`, greedy | 6 |",
        "6 of `sums.jsonl`.",
        f"own data, `sums.jsonl`. The data itself is not included, but {shown}.\n",
        "- Grading: an answer is correct if it equals the row's answer as a number or as text.",
        "rg-env train legs/run/config.yaml --eval-only --checkpoint legs data.path=PATH",
    ):
        assert text in found
    assert not re.search(FALSE_CLAIMS, found)
    edited(tmp_path / "run", "config.yaml", data={"name": "own_sums"})
    named = card_of(tmp_path / "run")
    assert "on the author's own data (`own_sums`)" in named
    assert "sums.jsonl`" not in named
    edited(tmp_path / "run", "config.yaml", data={"name": None})
    whole = card_of(tmp_path / "run", optimizer_state="full")
    assert f"{shown}, and `run/rollouts.jsonl` contains questions from training.\n" in whole


@pytest.mark.parametrize(("data", "named"), [("problems.jsonl", "problems.jsonl"), (None, "20 own rows")])
def test_the_card_of_a_scripts_run_on_own_rows(make_trainer: Any, tmp_path: Path, data: str | None, named: str) -> None:
    """The card names the script's `--data` or, without it, the number of rows."""
    rows = [{"question": f"{number} + 1", "answer": number + 1} for number in range(24)]
    trainer = make_trainer(env=Environment(rows[:20], rows[20:]), max_steps=1, max_tokens=8)
    train(trainer, settings={"data": data}, evaluation=EvaluationPlan(every=1))
    found = card_of(tmp_path / "run")
    for text in (
        f"A model trained with GRPO on the author's own data (`{named}`) with rg-env.",
        f"| `{named}`, greedy | 4 |",
        "- Grading: by the reward functions of the training script.",
    ):
        assert text in found
    assert not re.search(FALSE_CLAIMS, found)


def test_the_license_is_what_the_base_models_card_states(tmp_path: Path) -> None:
    """The license is unknown if the base model's card is missing, damaged, or does not state it."""
    assert find_license(Base("tiny"))["license"] == "apache-2.0"
    assert find_license(Base("org/base", on_hub=True)) == {}, "without a connection"
    base, card = Base("base", folder=tmp_path), tmp_path / "README.md"
    assert find_license(base) == {}
    card.write_text("---\nlicense: other\nlicense_name: llama3.2\nlicense_link: LICENSE\n---\n# x\n")
    named = {"license": "other", "license_name": "llama3.2", "license_link": "LICENSE"}
    assert find_license(base) == {**named, "stated_by": "the base model's own card"}
    card.write_bytes(b"---\nlicense: " + b"[" * 20_000 + b"\n---\n\xff\n")
    assert find_license(base) == {}


def test_folders_of_the_machine_are_left_out_of_settings() -> None:
    """Text that only looks like a path is kept."""
    kept = {
        "prompt": {"system_prompt": "/home/ is a folder"},
        "tasks": {"a": {"config": {"operators": ["+", "/"], "text": "/no_think"}}},
    }
    values = {
        "model": {"name": "/home/me/models/base"},
        "output": {"dir": "/home/me/run", "save_every": 2},
        "training": {"output_dir": "/home/me/run", "logging_dir": "x/y", "max_steps": 4},
        "hub": {"enabled": True},
    }
    plain = {"model": {"name": "base"}, "output": {"save_every": 2}, "training": {"max_steps": 4}}
    assert publishable({**values, **kept}) == {**plain, **kept}
