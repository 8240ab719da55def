"""Tests of the task files in `configs/lm_eval` and of invalid ones in lm-eval itself, on data with the real data sets'
columns."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

_PROBE = r"""
import json, sys
from pathlib import Path
import datasets
from rg_env.evaluation import lm_eval_process as harness
from rg_env.evaluation.load import eval_config_of
from rg_env.evaluation.external import check_tasks

folders = check_tasks(eval_config_of(["models=tiny", "external.tasks=gsm8k"]))
data, calls, out = json.loads(Path(sys.argv[1]).read_text()), json.loads(sys.argv[2]), Path(sys.argv[3])
real = datasets.load_dataset

def load_dataset(path=None, name=None, **options):  # the hub
    if path == "json":
        return real(path, name, **options)
    if path not in data:
        raise ConnectionError(f"Couldn't reach {path!r} on the Hub")
    return datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in data[path].items()})

datasets.load_dataset = load_dataset
found = {}
for name, call in calls.items():
    try:
        descriptions = call.get("descriptions", {})
        loaded = harness.load([call.get("task", name)], call["include"], folders, descriptions)
        harness.ask(loaded, None, [None], out / "requests.jsonl")
        requests = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
        texts = {each["key"]: call["answers"][each["chat"][-1]["content"].split("\n")[0]] for each in requests}
        scores = harness.score(loaded, None, call.get("task", name), None, texts, str(out / name))["scores"]
        found[name] = {"requests": requests, "scores": scores}
    except harness.Refused as error:
        found[name] = {"refused": str(error)}
print(json.dumps(found))
"""
ROOT = Path(__file__).parents[2]
GSM8K = [
    ("Pens cost $3. How much are 24?", "<think>3 x 24</think>\n<answer>72</answer> or 71", True, True),
    ("And 400?", "<answer>$1,200.", True, True),
    ("Ann is 5, Bo 13 years older. How old is Bo?", "Hm.<answer>7?</answer>", False, False),
    ("And Cy, as old as Bo?", "<answer>wait</answer>", False, False),
    ("And Di, as old as both?", "<answer>18 + 18 = 36 years", True, True),
    ("And Ed, as old as Di?", "He is 36.", False, True),
]  # fmt: skip
GSM8K_GOLD = ["72", "1,200", "18", "18", "36", "36"]
SUBJECTS = ["biology", "business", "chemistry", "computer science", "economics", "engineering", "health", "history",
            "law", "math", "other", "philosophy", "physics", "psychology"]  # fmt: skip
MATH = [
    ("What is half of one?", r"It is $\boxed{\frac{1}{2}}$.", r"<answer>Final Answer: The final answer is $\frac12$. "
     "I hope it is correct.</answer>"),
    ("What is 1 + 2?", r"It is $\boxed{3}$.", r"So $\boxed{3}$"),
    ("What is 1 + 3?", r"It is $\boxed{4}$.", "<answer>Final Answer: The final answer is $5$. I hope it is correct."),
]  # fmt: skip
BAD = {
    "bad_choice": "output_type: multiple_choice\ndoc_to_choice: [a, b]\ndoc_to_target: 0\n",
    "bad_code": "output_type: generate_until\nunsafe_code: true\ndoc_to_target: a\n",
    "bad_prefix": "output_type: generate_until\ngen_prefix: It is\ndoc_to_target: a\n",
}


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory, offline: None) -> dict[str, Any]:
    """Return lm-eval's requests and scores for the shipped task files, and its errors for invalid ones."""
    out = tmp_path_factory.mktemp("probe")
    for name, text in BAD.items():
        head = f"task: {name}\ndataset_path: bad\ntest_split: test\ndoc_to_text: '{{{{question}}}}'\n"
        (out / f"{name}.yaml").write_text(head + text)
    train = [
        {"question": f"Shown {n}?", "answer": f"Twice is <<{n}*2={2 * n}>>{2 * n}.\n#### {2 * n}"} for n in range(9)
    ]
    asked = zip([question for question, *_ in GSM8K], GSM8K_GOLD, strict=True)
    tests = [{"question": question, "answer": f"Worked.\n#### {gold}"} for question, gold in asked]
    math_docs = [{"problem": p, "solution": s, "level": "Level 1", "type": "Algebra"} for p, s, _ in MATH]
    pro = [
        {"question_id": n, "question": f"Of {each}?", "options": ["no ", "yes", "both"], "answer": "B",
         "answer_index": 1, "cot_content": "A: Let's think step by step. The answer is (B).", "category": each,
         "src": "here"}
        for n, each in enumerate(SUBJECTS)
    ]  # fmt: skip
    data = {
        "openai/gsm8k": {"train": train, "test": tests},
        "EleutherAI/hendrycks_math": {"train": math_docs, "test": math_docs},
        "TIGER-Lab/MMLU-Pro": {"validation": pro * 5, "test": pro},
        "bad": {"test": [{"question": "?"}]},
    }
    (out / "data.json").write_text(json.dumps(data))
    shipped = str(ROOT / "configs" / "lm_eval")
    letters = {f"Of {each}?": "<answer>B</answer>" for each in SUBJECTS}
    letters |= {"Of law?": "<answer>(B) yes</answer>", "Of math?": "<answer>A, B</answer>", "Of other?": "It is B."}
    calls = {
        "gsm8k_rg": {"include": [shipped], "answers": {question: text for question, text, *_ in GSM8K}},
        "math_rg": {"include": [shipped], "answers": {problem: text for problem, _, text in MATH}},
        "mmlu_pro_rg": {"include": [shipped], "answers": letters},
        "math_of_a_run": {
            "task": "math_rg",
            "include": [shipped],
            "descriptions": {"math_rg": "Of the {{run}}."},
            "answers": {problem: text for problem, _, text in MATH},
        },
        "mmlu_pro": {"include": [shipped], "answers": {"Question:": "<answer>B</answer> The answer is (B)."}},
        "gsm8k_platinum_cot": {"include": [], "answers": {}},
        **{name: {"include": [str(out)], "answers": {}} for name in BAD},
    }
    given = [str(out / "data.json"), json.dumps(calls), str(out)]
    command = [sys.executable, "-W", "ignore", "-c", _PROBE, *given]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _scores(found: dict[str, Any]) -> dict[tuple[str, str, str], tuple[float, int]]:
    return {(each["task"], each["metric"], each["filter"]): (each["value"], each["n"]) for each in found["scores"]}


@pytest.mark.slow
def test_shipped_tasks_use_the_training_prompt(probed: dict[str, Any]) -> None:
    """The system message is the training prompt, verbatim. A run's own prompt replaces it in every task of a group and
    changes nothing else."""
    import yaml

    prompt = yaml.safe_load((ROOT / "configs/prompts/deepseek_zero.yaml").read_text())["prompt"]["system_prompt"]
    for name in ("gsm8k_rg", "math_rg", "mmlu_pro_rg"):
        for request in probed[name]["requests"]:
            assert request["chat"][0] == {"role": "system", "content": prompt}
            assert request["sampling"]["max_gen_toks"] == 4096
    own, plain = (probed[name]["requests"][0]["chat"] for name in ("math_of_a_run", "math_rg"))
    assert own == [{"role": "system", "content": "Of the {{run}}."}, *plain[1:]]
    assert _scores(probed["math_of_a_run"]) == _scores(probed["math_rg"])


@pytest.mark.slow
def test_gsm8k_shows_examples_in_the_requested_format(probed: dict[str, Any]) -> None:
    """The graders use the last number in the answer tag or in the text."""
    found = probed["gsm8k_rg"]
    chat = found["requests"][0]["chat"]
    assert len(chat) == 1 + 2 * 8 + 1
    assert chat[3] == {"role": "user", "content": "Shown 1?"}
    assert chat[4] == {"role": "assistant", "content": "<think> Twice is 2. </think>\n<answer>2</answer>"}
    assert chat[-1]["content"] == GSM8K[0][0]
    assert found["requests"][0]["sampling"] == {
        "do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 4096}  # fmt: skip
    assert _scores(found) == {
        ("gsm8k_rg", "exact_match", "strict-match"): (pytest.approx(fmean(strict for *_, strict, _ in GSM8K)), 6),
        ("gsm8k_rg", "exact_match", "flexible-extract"): (pytest.approx(fmean(each for *_, each in GSM8K)), 6),
    }


@pytest.mark.slow
def test_math_is_graded_by_exact_match_and_by_math_verify(probed: dict[str, Any]) -> None:
    """All seven subjects are included, here with the same three questions."""
    found = probed["math_rg"]
    assert found["requests"][0]["chat"][1]["content"].startswith("What is half of one?\n\nWrite nothing between the")
    assert len(found["requests"]) == 7 * 3
    scores = _scores(found)
    assert scores["math_rg", "exact_match", "none"] == (pytest.approx(1 / 3), 21)
    assert scores["math_rg", "math_verify", "none"] == (pytest.approx(2 / 3), 21)
    assert len(scores) == 2 * (1 + 7)


@pytest.mark.slow
def test_mmlu_pro_grades_the_letter_in_the_answer_tag(probed: dict[str, Any]) -> None:
    """All fourteen subjects are included, and lm-eval's own mmlu_pro is unchanged."""
    found = probed["mmlu_pro_rg"]
    chat = found["requests"][0]["chat"]
    assert [each["role"] for each in chat] == ["system", "user"]
    assert chat[1]["content"] == "Of biology?\n\nA. no\nB. yes\nC. both\n\nAnswer with the letter of the right option."
    assert _scores(found)["mmlu_pro_rg", "exact_match", "strict-match"] == (pytest.approx(12 / 14), 14)
    theirs = probed["mmlu_pro"]
    assert _scores(theirs)["mmlu_pro", "exact_match", "custom-extract"] == (1.0, 14)
    assert "<answer>" not in theirs["requests"][0]["chat"][0]["content"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gsm8k_platinum_cot", r"cannot be loaded: Couldn't reach 'madrylab/gsm8k-platinum' on the Hub \(datasets"),
        ("bad_choice", r"bad_choice is scored by the likelihood of given answers \(multiple_choice\)"),
        ("bad_code", r"bad_code: Attempted to run task: bad_code which is marked as unsafe"),
        ("bad_prefix", r"bad_prefix sets gen_prefix"),
    ],
)
def test_unsupported_benchmarks_are_reported(probed: dict[str, Any], name: str, message: str) -> None:
    """The reason has one line and is found before a model is loaded."""
    assert re.search(message, probed[name]["refused"])
    assert "\n" not in probed[name]["refused"]
