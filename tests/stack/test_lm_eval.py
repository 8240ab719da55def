"""Tests of `configs/lm_eval` with `lm_eval` itself, on small data with the real data sets' columns."""

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pytest
import yaml
from chat_server import ChatServer, completion
from forked_python import PYTHON
from starlette.responses import JSONResponse

from rg_env.core.data.dataset import build_rows
from rg_env.core.prompts import SYSTEM_PROMPT
from rg_env.tiny import POLICY_DIR, TASKS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forks")]
ROOT = Path(__file__).parents[2]
PROMPT = yaml.safe_load((ROOT / "configs/prompts/deepseek_zero.yaml").read_text())["prompt"]["system_prompt"]
GSM8K = [
    ("Pens cost $3. How much are 24?", "<think>3 x 24</think>\n<answer>72</answer> or 71", True, True),
    ("And 400?", "<answer>$1,200.", True, True),
    ("Ann is 5, Bo 13 years older. How old is Bo?", "Hm.<answer>7?</answer>", False, False),
    ("And Cy, as old as Bo?", "<answer>wait</answer>", False, False),
    ("And Di, as old as both?", "<answer>18 + 18 = 36 years", True, True),
    ("And Ed, as old as Di?", "He is 36.", False, True),
]
"""Question, answer, and whether strict-match and flexible-extract accept the answer."""
GSM8K_GOLD = ["72", "1,200", "18", "18", "36", "36"]
SUBJECTS = ["biology", "business", "chemistry", "computer science", "economics", "engineering", "health", "history",
            "law", "math", "other", "philosophy", "physics", "psychology"]  # fmt: skip
LETTERS = {f"Of {each}?": "<answer>B</answer>" for each in SUBJECTS} | {
    "Of law?": "<answer>(B) yes</answer>", "Of math?": "<answer>A, B</answer>", "Of other?": "It is B."}  # fmt: skip
MATH = [
    ("What is half of one?", r"It is $\boxed{\frac{1}{2}}$.", r"<answer>Final Answer: The final answer is $\frac12$. "
     "I hope it is correct.</answer>"),
    ("What is 1 + 2?", r"It is $\boxed{3}$.", r"So $\boxed{3}$"),
    ("What is 1 + 3?", r"It is $\boxed{4}$.", "<answer>Final Answer: The final answer is $5$. I hope it is correct."),
]  # fmt: skip
MATH_SUBJECTS = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
                 "prealgebra", "precalculus")  # fmt: skip


def _write(folder: Path, configs: Mapping[str, Mapping[str, list[dict[str, Any]]]]) -> None:
    """Write a data set with these splits by configuration. `datasets` prefers a folder to a data set on the Hub."""
    folder.mkdir(parents=True)
    listed = []
    for name, splits in configs.items():
        files = [{"split": split, "path": f"{name}-{split}.jsonl"} for split in splits]
        listed.append({"config_name": name, "data_files": files})
        for split, rows in splits.items():
            (folder / f"{name}-{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': listed})}---\n")


def _lm_eval(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run `lm_eval` in `folder`, which contains its data sets, and return its results."""
    command = [*PYTHON, "-m", "lm_eval", *arguments, "--include_path",
               str(ROOT / "configs" / "lm_eval"), "--apply_chat_template", "--output_path", "out.json",
               "--log_samples"]  # fmt: skip
    environment = {**os.environ, "HF_DATASETS_CACHE": str(folder / "cache")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (file,) = folder.glob("out_*.json")
    found: dict[str, Any] = json.loads(file.read_text())["results"]
    return found


class Asked(NamedTuple):
    """Scores by task and metric, and the chats by the first line of the question."""

    scores: dict[str, Any]
    chats: dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def chat() -> Iterator[ChatServer]:
    with ChatServer(str) as server:
        yield server


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, chat: ChatServer, forks: None) -> Asked:
    """Evaluate an endpoint with prepared answers on the three shipped tasks."""
    folder = tmp_path_factory.mktemp("lm_eval")
    train = [
        {"question": f"Shown {n}?", "answer": f"Twice is <<{n}*2={2 * n}>>{2 * n}.\n#### {2 * n}"} for n in range(9)
    ]
    golds = zip([question for question, *_ in GSM8K], GSM8K_GOLD, strict=True)
    tests = [{"question": question, "answer": f"Worked.\n#### {gold}"} for question, gold in golds]
    _write(folder / "openai/gsm8k", {"main": {"train": train, "test": tests}})
    docs = [{"problem": p, "solution": s, "level": "Level 1", "type": "Algebra"} for p, s, _ in MATH]
    _write(folder / "EleutherAI/hendrycks_math", {name: {"train": docs, "test": docs} for name in MATH_SUBJECTS})
    pro = [
        {"question_id": n, "question": f"Of {each}?", "options": ["no ", "yes", "both"], "answer": "B",
         "answer_index": 1, "cot_content": "A: Let's think step by step. The answer is (B).", "category": each,
         "src": "here"}
        for n, each in enumerate(SUBJECTS)
    ]  # fmt: skip
    _write(folder / "TIGER-Lab/MMLU-Pro", {"default": {"validation": pro * 5, "test": pro}})
    answers = {question: text for question, text, *_ in GSM8K} | {question: text for question, _, text in MATH}
    answers |= LETTERS
    chats = defaultdict(list)

    def reply(number: int, body: dict[str, Any]) -> JSONResponse:
        question = body["messages"][-1]["content"].split("\n")[0]
        chats[question].append(body)
        text = answers[question]
        for stop in body["stop"]:
            text = text.split(stop)[0]
        return JSONResponse(completion(text))

    chat.reset(str, reply)
    arguments = f"model=m,base_url={chat.url}/chat/completions,num_concurrent=4,max_retries=1"
    scores = _lm_eval(folder, "--model", "local-chat-completions", "--model_args", arguments, "--tasks",
                      "gsm8k_rg,math_rg,mmlu_pro_rg", "--system_instruction", PROMPT)  # fmt: skip
    return Asked(scores, dict(chats))


def test_the_papers_protocols(tmp_path: Path, chat: ChatServer) -> None:
    """A prompt is one user turn with the paper's markup and examples. The sentence at the end is graded in GSM8K, and
    the last box in MATH."""
    tests = [{"question": f"How much is {n} + 1?", "answer": f"Add.\n#### {n + 1}"} for n in range(4)]
    _write(tmp_path / "openai/gsm8k", {"main": {"train": tests, "test": tests}})
    docs = [{"problem": p, "solution": s, "level": "Level 1", "type": "Algebra"} for p, s, _ in MATH]
    _write(tmp_path / "EleutherAI/hendrycks_math", {name: {"train": docs, "test": docs} for name in MATH_SUBJECTS})
    boxed = {MATH[0][0]: r"$\boxed{4}$ no, $\boxed{\frac12}$.</answer>", MATH[1][0]: "3", MATH[2][0]: r"\boxed{5}"}
    asked: list[dict[str, Any]] = []

    def reply(number: int, body: dict[str, Any]) -> JSONResponse:
        asked.append(body)
        text = body["messages"][-1]["content"]
        question = text.rpartition("Problem: ")[2].splitlines()[0].partition("<|eot_id|>")[0]
        answer = boxed.get(question, "So. The final answer is 2")
        return JSONResponse(completion(answer.split("</answer>")[0]))

    chat.reset(str, reply)
    arguments = f"model=m,base_url={chat.url}/chat/completions,num_concurrent=4,max_retries=1"
    scores = _lm_eval(tmp_path, "--model", "local-chat-completions", "--model_args", arguments, "--tasks",
                      "gsm8k_cot_rg,llama_math_rg", "--fewshot_as_multiturn", "False")  # fmt: skip
    assert scores["gsm8k_cot_llama"]["exact_match,strict-match"] == pytest.approx(1 / 4)
    assert scores["llama_math_rg"]["exact_match,none"] == pytest.approx(1 / 3)
    assert all([message["role"] for message in body["messages"]] == ["user"] for body in asked)
    texts = [body["messages"][0]["content"] for body in asked]
    counts = {("trees" in text, text.count("<|im_start|>system"), text.count("<|begin_of_text|>")) for text in texts}
    assert counts == {(True, 9, 0), (False, 0, 1)}
    few_shot = next(text for text in texts if "trees" in text)
    assert "<|im_start|>assistant\n There are 15 trees originally." in few_shot
    assert {(body["temperature"], body["max_tokens"]) for body in asked} == {(0.6, 4096), (0.0, 4096)}


def test_shipped_tasks_leave_the_prompt_to_the_system_instruction(asked: Asked) -> None:
    """The system message is the training prompt, verbatim, and answers end at the closing tag."""
    for question in (GSM8K[0][0], MATH[0][0], "Of biology?"):
        for body in asked.chats[question]:
            assert body["messages"][0] == {"role": "system", "content": PROMPT}
            assert "</answer>" in body["stop"]
            assert body["max_tokens"] == 4096


def test_gsm8k_shows_examples_in_the_requested_format(asked: Asked) -> None:
    """The graders use the last number in the answer tag or in the text."""
    (body,) = asked.chats[GSM8K[0][0]]
    chat = body["messages"]
    assert len(chat) == 1 + 2 * 8 + 1
    assert chat[3] == {"role": "user", "content": "Shown 1?"}
    assert chat[4] == {"role": "assistant", "content": "<think> Twice is 2. </think>\n<answer>2</answer>"}
    assert (body["temperature"], body["top_p"]) == (0.6, 0.95)
    scores = asked.scores["gsm8k_rg"]
    assert scores["exact_match,strict-match"] == pytest.approx(fmean(strict for *_, strict, _ in GSM8K))
    assert scores["exact_match,flexible-extract"] == pytest.approx(fmean(each for *_, each in GSM8K))


def test_math_is_graded_by_exact_match_and_by_math_verify(asked: Asked) -> None:
    """All seven subjects are included, here with the same three questions."""
    chats = asked.chats[MATH[0][0]]
    assert len(chats) == 7
    assert chats[0]["messages"][1]["content"].startswith("What is half of one?\n\nWrite nothing between the")
    scores = asked.scores["math_rg"]
    assert scores["exact_match,none"] == pytest.approx(1 / 3)
    assert scores["math_verify,none"] == pytest.approx(2 / 3)


def test_mmlu_pro_grades_the_letter_in_the_answer_tag(asked: Asked) -> None:
    """All fourteen subjects are included."""
    (body,) = asked.chats["Of biology?"]
    assert [each["role"] for each in body["messages"]] == ["system", "user"]
    text = "Of biology?\n\nA. no\nB. yes\nC. both\n\nAnswer with the letter of the right option."
    assert body["messages"][1]["content"] == text
    assert asked.scores["mmlu_pro_rg"]["exact_match,strict-match"] == pytest.approx(12 / 14)


def test_a_checkpoint_is_evaluated_by_the_documented_command(tmp_path: Path) -> None:
    """The tiny policy answers questions of its own task, a few of them correctly. The accuracy is the share of right
    answers in lm-eval's samples."""
    rows = build_rows({"name": "leg_counting", "config": TASKS["leg_counting"]}, "eval", 60, 0)[40:]
    docs = [{"question": row["question"], "answer": f"#### {row['answer']}"} for row in rows]
    _write(tmp_path / "openai/gsm8k", {"main": {"train": docs[:1], "test": docs}})
    scores = _lm_eval(tmp_path, "--model", "hf", "--model_args", f"pretrained={POLICY_DIR}", "--device", "cpu",
                      "--tasks", "gsm8k_rg", "--num_fewshot", "0", "--system_instruction", SYSTEM_PROMPT,
                      "--gen_kwargs", "do_sample=False,temperature=0,max_gen_toks=90")  # fmt: skip
    (file,) = tmp_path.glob("samples_gsm8k_rg_*.jsonl")
    samples = [json.loads(line) for line in file.read_text().splitlines()]
    right = [
        each["resps"][0][0].endswith(f"<answer>{each['target']}")
        for each in samples
        if each["filter"] == "strict-match"
    ]
    assert len(right) == 20
    assert 0 < fmean(right) < 1
    assert scores["gsm8k_rg"]["exact_match,strict-match"] == pytest.approx(fmean(right))
