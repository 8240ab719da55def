"""The card says what the run's files say, and nothing else; text of others in it is data."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_runs import SMALL
from huggingface_hub import ModelCard, ModelCardData
from transformers import AutoModelForCausalLM

from rg_env.core.data.manifest import split_hash
from rg_env.core.statistics import paired_difference, share_interval
from rg_env.publish.hub.licence import licence_of
from rg_env.publish.hub.markdown import block, code, table, text
from rg_env.publish.hub.push import preview
from rg_env.publish.hub.record import publishable, read_record
from rg_env.publish.hub.source import find
from rg_env.tiny import POLICY_DIR
from rg_env.training.hub_uploads import PushRequest

NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
PROSE = {"95", "256"}
"""Of the sentences themselves: intervals of 95 %, SHA-256."""


def card_of(path: Path, **asked: Any) -> str:
    """The card that a push of `path` would have."""
    shown = preview(PushRequest(path, "me/legs", **asked))
    return shown[shown.index("---\n") :]


def numbers_in(value: object) -> Iterator[float]:
    """All numbers in plain values, and those in texts among them."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from numbers_in(key)
            yield from numbers_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from numbers_in(each)
    elif isinstance(value, str):
        yield from (float(found.replace(",", "").rstrip(".")) for found in NUMBER.findall(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def derived(before: dict[str, Any], after: dict[str, Any]) -> Iterator[float]:
    """Intervals, differences and p-values, from the rollouts in the files."""

    def answers(values: dict[str, Any], chosen: Callable[[dict[str, Any]], bool], key: str) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for record in values["rollouts"]:
            if chosen(record) and record.get(key) is not None:
                found.setdefault(record["problem"], []).append(float(record[key]))
        return found

    names = {(record["part"], record["task"]) for record in after["rollouts"]}
    choices = [lambda r, name=name: (r["part"], r["task"]) == name for name in names]
    for chosen in (*choices, lambda record: record["part"] == "training"):
        for key in ("correct", "greedy_correct"):
            one, other = answers(before, chosen, key), answers(after, chosen, key)
            found = paired_difference([(other, one)])
            yield from (found.value, *found.interval, found.p_value)
            yield from (*share_interval([*one.values()]), *share_interval([*other.values()]))


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 4])
def test_every_number_is_in_the_runs_files(trained: Path, step: int) -> None:
    """Or follows from the rollouts in them, by the project's own statistics."""
    found = card_of(trained / f"checkpoint-{step}", optimizer_state="full")
    values = [yaml.safe_load((trained / name).read_text()) for name in ("config.yaml", "arguments.yaml")]
    evaluations = [json.loads((trained / f"eval_results/eval_step_{each}.json").read_text()) for each in (0, step)]
    manifest = json.loads((trained / "manifest.json").read_text())
    values += [manifest, json.loads((trained / "train_results.json").read_text()), *evaluations]
    values += [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    known = [*numbers_in(values), *derived(*evaluations)]
    hashes = [split_hash(manifest["rows"], split) for split in ("train", "eval")]
    hashes += [split_hash(rows, "eval") for rows in manifest["evaluation_rows"]]
    hashes += [entry["manifest_sha256"] for entry in evaluations[0]["questions"]]
    body = found
    for known_text in (*hashes, manifest["platform"], f"checkpoint-{step}"):
        body = body.replace(known_text, "").replace(text(known_text), "")
    shown = [number for number in NUMBER.findall(body) if number not in PROSE]
    assert len(shown) > 80
    for number in shown:
        digits = len(number.partition(".")[2]) if "e" not in number else 12
        value = float(number.replace(",", ""))
        assert any(round(each, digits) == value for each in known), number


@pytest.mark.slow
def test_the_table_has_each_part_with_its_figures(trained: Path) -> None:
    """Tasks that were trained on, all of them together, held-out ones, and labels."""
    found = card_of(trained)
    after = json.loads((trained / "eval_results/eval_step_4.json").read_text())
    row = next(line for line in found.splitlines() if line.startswith("| `leg_counting`, greedy |"))
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    scores = after["tasks"]["leg_counting"]
    assert cells[1] == str(scores["n"])
    assert cells[3].startswith(f"{scores['greedy_accuracy']:.3f} \\[")
    titles = ("Tasks that it was trained", "Tasks that it was not", "Other questions")
    trained_on, held_out, labels = (found.index(f"**{title}") for title in titles)
    assert trained_on < found.index("| all of them, sampled |") < held_out < found.index("| `simple_equations`, ")
    assert found.index("| `simple_equations`, ") < labels < found.index("| `long_sums`, sampled | 5 |")
    assert f"| {after['accuracy']:.3f}" in next(line for line in found.splitlines() if "all of them, sampled" in line)


@pytest.mark.slow
def test_the_head_is_valid_and_says_the_same(trained: Path) -> None:
    """As huggingface_hub reads it, `model-index` included."""
    data = ModelCard(card_of(trained)).data
    assert isinstance(data, ModelCardData)
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "transformers", "text-generation")
    after = json.loads((trained / "eval_results/eval_step_4.json").read_text())
    assert data.eval_results
    values = {(each.dataset_config, each.metric_name): each.metric_value for each in data.eval_results}
    for name, scores in (*after["tasks"].items(), *after["held_out"]["tasks"].items(), *after["labelled"].items()):
        assert values[name, "accuracy, sampled"] == scores["accuracy"]
        assert values[name, "accuracy, greedy"] == scores["greedy_accuracy"]
    assert len(values) == 2 * 4
    assert data.model_name == "legs"
    assert data.base_model is None, "the tiny policy is not on the Hub"


@pytest.mark.slow
def test_what_a_reader_is_to_know(trained: Path) -> None:
    found = card_of(trained, optimizer_state="full")
    for words in (
        "Trained from the tiny policy that ships with rg\\_env",
        "Licence of the base model: `apache-2.0`",
        "![Learning curve of the run](reward_curve.png)",
        "Bars of the accuracies: one standard error to each side.",
        "pip install 'rg-env[train]'\nhf download me/legs --local-dir legs\n",
        'AutoModelForCausalLM.from_pretrained("me/legs")',
        "rg-env train legs/run/config.yaml --eval-only --checkpoint legs ",
        "--resume auto output.dir=legs/run training.max_steps=MORE",
        "Grading `hardened`: right or not",
        "of the sampled answers were cut off by the limit of 60 tokens",
        "safety were not measured",
        "| CPU cores | ",
        "| GPUs | ",
        "torch ",
    ):
        assert words in found, words
    assert "0.000 of the" not in found, "none is"
    assert len(SMALL) > 1  # the run has a held-out task
    assert "Nothing was measured on tasks that it was not trained on" not in found
    earlier = card_of(trained / "checkpoint-2", optimizer_state="full")
    assert "These are the weights of step 2; the run went on to step 4." in earlier
    assert "output.dir=legs/run\n" in earlier, "there are steps left to do"


@pytest.mark.slow
@pytest.mark.parametrize("grading", ["hardened", "upstream"])
def test_a_run_of_a_script_says_how_it_was_graded(run: Path, grading: str) -> None:
    """Its settings are those of the environment, in config.yaml; there is no config to run again."""
    arguments = yaml.safe_load((run / "arguments.yaml").read_text())
    arguments["environment"]["grading"] = grading
    (run / "config.yaml").write_text(yaml.safe_dump(arguments))
    (run / "arguments.yaml").unlink()
    found = card_of(run, optimizer_state="full")
    assert f"- Grading `{grading}`: " in found
    assert f"| `grading` | `{grading}` |" in found
    (line,) = (line for line in found.splitlines() if line.startswith("rg-env eval "))
    assert ("grading=" in line) == (grading == "upstream")
    assert "rg-env train" not in found
    assert "Give `--resume legs/run/checkpoint-4` to the script that trained it." in found


@pytest.mark.slow
def test_what_is_missing_is_said(run: Path) -> None:
    """A run that goes on, was ended, has no evaluation of these weights, or damaged ones."""
    results = json.loads((run / "train_results.json").read_text())
    told = {
        "stopped_by": "kl_spike",
        "monitors": ["step 3: monitor *kl* | rose"],
        "interrupted": True,
        "error": "a <b>",
    }
    (run / "train_results.json").write_text(json.dumps({**results, **told}))
    found = card_of(run)
    for words in ("ended by the monitor `kl_spike`", r"A monitor said: step 3: monitor \*kl\* \| rose",
                  "was interrupted", "with an error: a &lt;b&gt;"):  # fmt: skip
        assert words in found
    (run / "eval_results/eval_step_4.json").write_text("{")
    (run / "train_results.json").unlink()
    found = card_of(run)
    assert "**These weights, of step 4, were not evaluated**" in found
    assert "not known: the run was going on" in found
    assert "model-index" not in found
    assert read_record(run).notes == ["eval_results/eval_step_4.json is damaged: left out of the card"]
    shutil.rmtree(run / "eval_results")
    assert "nothing was measured" in card_of(run)


@pytest.mark.slow
def test_figures_of_rounded_weights_are_told_as_such(run: Path) -> None:
    """An export in half precision was not evaluated by the run: no figure stands in the head; of one in full it was."""
    for dtype in ("float32", "bfloat16"):
        folder = run / f"checkpoint-4-{dtype}"
        model = AutoModelForCausalLM.from_pretrained(run / "checkpoint-4", dtype=dtype)
        model.save_pretrained(folder)
        found = card_of(folder)
        rounded = dtype == "bfloat16"
        assert ("**Measured before these weights were rounded to `BF16`**" in found) == rounded
        assert ("model-index" not in found) == rounded
        assert "after 4 steps" in found
    assert "rounded" not in card_of(run)


@pytest.mark.slow
def test_weights_of_no_known_step_have_no_figures(run: Path) -> None:
    """An export under a name of its own, in the run's folder."""
    shutil.copytree(POLICY_DIR, run / "half")
    found = card_of(run / "half")
    assert "**No file says after which step these weights were saved**" in found
    assert "of step None" not in found
    assert "model-index" not in found


@pytest.mark.slow
def test_the_program_asks_the_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the run asked first, in its prompt, as a reader would run it; text of others cannot end its line."""
    arguments = yaml.safe_load((run / "arguments.yaml").read_text())
    asked = arguments["environment"]["first_prompt"]
    asked[0]["content"] = system = "Say \"so\":\n```\nthen ''' <answer>1</answer>."
    (run / "arguments.yaml").write_text(yaml.safe_dump(arguments))
    (program,) = re.findall(r"^````+python\n(.*?)^````+$", card_of(run), re.DOTALL | re.MULTILINE)
    variables: dict[str, Any] = {}
    exec(program.replace("me/legs", str(run / "checkpoint-4")), variables)
    assert [message["content"] for message in variables["messages"]] == [system, asked[1]["content"]]
    assert capsys.readouterr().out.strip()
    assert variables["answer"].shape[1] <= variables["inputs"]["input_ids"].shape[1] + 60


@pytest.mark.slow
def test_the_commands_ask_as_the_run_did(run: Path, rg_env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rg-env eval` with the tasks as hard as they were, the same prompt and room for the answer: the card's own line,
    as a shell reads it, in the folder that the model was downloaded to."""
    prompt = 'It\'s "one": $HOME\nthen <answer>your answer here</answer>.'
    arguments = yaml.safe_load((run / "arguments.yaml").read_text())
    arguments["environment"]["system_prompt"] = prompt
    (run / "arguments.yaml").write_text(yaml.safe_dump(arguments))
    (run / "checkpoint-4").rename(run / "legs")
    monkeypatch.chdir(run)
    found = card_of(run / "legs")
    (line,) = (line for line in found.splitlines() if line.startswith("rg-env eval "))
    words = shlex.split(line, comments=True)[1:]
    code, out, err = rg_env(*words, "--dry-run")
    assert code == 0, err
    asked = yaml.safe_load(out)
    trained_on = {task["name"]: task["config"] for task in read_record(run).tasks}
    assert {name: task["config"] for name, task in asked["tasks"].items()} == trained_on
    assert trained_on["leg_counting"]["max_animals"] == 3, "not as it is by default"
    assert (asked["prompt"]["system_prompt"], asked["sampling"]["max_tokens"]) == (prompt, 60)
    code, _, err = rg_env(*words, "-n", "2", "--output-dir", "asked")
    assert code == 0, err


@pytest.mark.slow
def test_text_of_others_is_data(run: Path) -> None:
    """Names of tasks, options and prompts that look like markup: shown to the letter, and the head stays valid."""
    evil = 'x`|\n---\n# owned <script>alert(1)</script> [click](http://evil) "quoted": {{'
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["rows"]["tasks"][0] |= {"name": evil, "config": {evil: evil}}
    manifest["versions"][evil] = evil
    manifest["hardware"]["gpus"] = [evil]
    (run / "manifest.json").write_text(json.dumps(manifest))
    for file in run.glob("eval_results/*.json"):
        values = json.loads(file.read_text())
        values["tasks"] = {evil: values["tasks"]["leg_counting"], **values["tasks"]}
        file.write_text(json.dumps(values))
    arguments = yaml.safe_load((run / "arguments.yaml").read_text())
    arguments["environment"]["system_prompt"] = f"```\n{evil}\n```"
    (run / "arguments.yaml").write_text(yaml.safe_dump(arguments))
    found = card_of(run)
    data = ModelCard(found).data
    assert isinstance(data, ModelCardData)
    assert data.eval_results
    head, _, body = found[4:].partition("\n---\n")
    assert yaml.safe_load(head)["license"] == "apache-2.0"
    assert not re.search(r"^# owned", re.sub(r"(?ms)^````text.*?^````$", "", body), re.MULTILINE)
    outside = re.sub(r"(?ms)^(````?)\w+$.*?^\1$", "", body)
    outside = re.sub(r"(?<![\\`])(`+)(?!`).+?(?<!`)\1(?!`)", "", outside)
    assert "<script>" not in outside
    assert "[click](" not in outside
    rows = [line for line in body.splitlines() if line.startswith("| ``") and "owned" in line]
    assert rows
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {5, 7}, "no cell more than the head has"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain words, 3.5 (x)", r"plain words, 3.5 \(x\)"),
        ("a_b*c", r"a\_b\*c"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("![x](y)", r"\!\[x\]\(y\)"),
        ("see https://evil.example", r"see https\://evil\.example"),
        ("two\nlines\x1b[31m", r"two lines \[31m"),
    ],
)
def test_text_is_shown_to_the_letter(given: str, shown: str) -> None:
    assert text(given) == shown


def test_code_and_blocks_end_where_they_should() -> None:
    assert code("a`b") == "``a`b``"
    assert code("`a`") == "`` `a` ``"
    assert block("```\nx\n```").splitlines() == ["````text", "```", "x", "```", "````"]
    assert table(["a", "b"], [[code("x|y"), "z\\|"]]).splitlines()[-1] == "| `x\\|y` | z\\| |"


def test_the_licence_is_the_base_models_own_word(tmp_path: Path) -> None:
    """Of its card, or its configuration; where neither says, or they are damaged, it is not known."""
    assert licence_of("tiny").id == "apache-2.0"
    assert licence_of("Qwen/Qwen2.5-1.5B-Instruct").id is None, "nobody is asked"
    folder = tmp_path / "base"
    folder.mkdir()
    assert licence_of("base", folder).id is None
    (folder / "config.json").write_text('{"license": "mit"}')
    assert licence_of("base", folder).id == "mit"
    (folder / "README.md").write_text("---\nlicense: other\nlicense_name: llama3.2\nlicense_link: LICENSE\n---\n# x\n")
    found = licence_of("base", folder)
    assert (found.id, found.name, found.link) == ("other", "llama3.2", "LICENSE")
    for damaged in (b"---\n\t: [\n---\n", b"---\nlicense: " + b"[" * 20_000 + b"\n---\n", b"---\n\xff\n---\n"):
        (folder / "README.md").write_bytes(damaged)
        assert licence_of("base", folder).id == "mit"
    (folder / "config.json").write_text("[" * 20_000)
    assert licence_of("base", folder).id is None


def test_folders_of_the_machine_are_left_out_of_settings() -> None:
    """And what only looks like one stays."""
    values = {
        "model": {"name": "/home/me/models/base"},
        "output": {"dir": "/home/me/run", "save_every": 2},
        "training": {"output_dir": "/home/me/run", "logging_dir": "x/y", "max_steps": 4},
        "prompt": {"system_prompt": "/home/ is a folder"},
        "tasks": {"a": {"config": {"operators": ["+", "/"], "text": "/no_think"}}},
        "hub": {"enabled": True},
    }
    assert publishable(values) == {
        "model": {"name": "base"},
        "output": {"save_every": 2},
        "training": {"max_steps": 4},
        "prompt": values["prompt"],
        "tasks": values["tasks"],
    }
    assert publishable(publishable(values)) == publishable(values)


def test_a_model_without_a_run_claims_nothing() -> None:
    source = find(POLICY_DIR)
    assert (source.kind, source.run, source.step) == ("model", None, None)
    found = card_of(POLICY_DIR)
    assert "No file says which model it was trained from" in found
    assert "trained by GRPO" not in found
