"""Fixed evaluations: questions, schedule, results, and evaluation without training."""

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from run_metrics import evaluation_of as read
from run_metrics import lines_of, repeatable
from transformers import AutoModelForCausalLM

from rg_env.core.data.splits import split_of
from rg_env.core.environment import Environment
from rg_env.core.statistics import pass_at_k
from rg_env.errors import InputError, OutputFolderError, RewardError
from rg_env.tiny import POLICY_DIR, TASKS
from rg_env.training import EvaluationPlan, evaluate_only, load_policy, train
from rg_env.training.config.load import load_train_config
from rg_env.training.config.schema import TrainConfig
from rg_env.training.curriculum import Curriculum
from rg_env.training.evaluation import FixedEvaluation
from rg_env.training.from_config import evaluation_plan

UNSEEN = [{"name": "chain_sum", "config": TASKS["chain_sum"]}]


def drawn(rollouts: list[dict[str, Any]], draw: str, **of: Any) -> list[dict[str, Any]]:
    """Return the sampled or greedy answers with these values."""
    return [each for each in rollouts if each["draw"] == draw and all(each[key] == of[key] for key in of)]


@pytest.fixture
def unseen(make_env: Any) -> Any:
    """An environment with five questions of a task that is not trained on."""
    return make_env(gym=UNSEEN, num_train_examples=0, num_eval_examples=5)


def test_the_results_of_a_plan(
    make_trainer: Any, unseen: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All results follow from the stored rollouts, held-out tasks are separate, and an evaluation samples all its
    prompts in one batch."""
    trainer, batches = make_trainer(max_steps=1), []
    generate = trainer.engine.generate

    def counted(prompts: Any, sampling: Any) -> Any:
        batches.append((len(prompts), sampling.temperature))
        return generate(prompts, sampling)

    trainer.engine.generate = counted
    plan = EvaluationPlan(held_out=[unseen], rollouts_per_example=4, temperature=0.7, top_p=0.9, max_tokens=16)
    results = train(trainer, evaluation=plan)
    whole = [(13 * 4, 0.7), (13, 0.0)]  # 4 sampled answers and one greedy answer to each question
    assert batches == [*whole, (16, 1.0), *whole]
    run = tmp_path / "run"
    saved = read(run, 1)
    settings = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 16, "rollouts_per_example": 4, "greedy": True}
    assert settings.items() <= saved["sampling"].items()
    assert (saved["n"], saved["held_out"]["n"], len(saved["rollouts"])) == (8, 5, 13 * 4 + 13)
    assert list(saved["tasks"]) == ["leg_counting"]
    assert list(saved["held_out"]["tasks"]) == ["chain_sum"]
    for scores, task in ((saved, "leg_counting"), (saved["held_out"], "chain_sum")):
        answers = drawn(saved["rollouts"], "sampled", task=task)
        assert scores["accuracy"] == pytest.approx(statistics.fmean(each["correct"] for each in answers))
        assert scores["reward"] == pytest.approx(statistics.fmean(each["reward"] for each in answers))
        cut_off = [each["completion_tokens"] == 16 and each["truncated"] for each in answers]
        assert scores["truncated"] == pytest.approx(statistics.fmean(cut_off))
        greedy = [each["correct"] for each in drawn(saved["rollouts"], "greedy", task=task)]
        assert len(greedy) == scores["n"]
        assert scores["greedy_accuracy"] == pytest.approx(statistics.fmean(greedy))
        right: Counter[int] = Counter()
        for each in answers:
            right[each["problem"]] += each["correct"]
        passes = {f"pass@{k}": statistics.fmean(pass_at_k(4, c, k) for c in right.values()) for k in (1, 2, 4)}
        assert scores["pass_at_k"] == pytest.approx(passes)
        assert scores["errors"]["pass@1"] == pytest.approx(scores["errors"]["accuracy"])
    logged = next(line for line in lines_of(run / "metrics.jsonl") if line["step"] == 1 and "eval/accuracy" in line)
    assert logged["eval/held_out/accuracy"] == logged["eval/chain_sum/accuracy"] == saved["held_out"]["accuracy"]
    assert logged["eval/accuracy"] == logged["eval/leg_counting/accuracy"] == saved["accuracy"]
    assert logged["eval/pass@4"] == saved["pass_at_k"]["pass@4"]
    assert {"eval/truncated", "eval/held_out/pass@2", "time/evaluation"} <= set(logged)
    assert sum(share for name, share in logged.items() if name.startswith("eval/chain_sum/status/")) == pytest.approx(1)
    assert results["eval_after"] == {name: value for name, value in saved.items() if name != "rollouts"}
    assert [entry["part"] for entry in saved["questions"]] == ["training", "held_out"]
    assert json.loads((run / "manifest.json").read_text())["evaluation_rows"] == [unseen.manifest]
    printed = capsys.readouterr().out
    for row in ("training tasks, accuracy", "training tasks, greedy accuracy", "held-out tasks, pass@4", "cut off"):
        assert row in printed
    assert "leg_counting  after 1 step - before" in " ".join(printed.split()).replace("leg_counting ", "leg_counting  ")
    assert (run / "reward_curve.png").exists()


@pytest.mark.slow
def test_labels_do_not_count_toward_overall_results(
    make_trainer: Any, make_env: Any, unseen: Any, tmp_path: Path
) -> None:
    """A training task at another difficulty and a held-out task are reported under their labels and are in the
    manifest."""
    config = {**TASKS["leg_counting"], "min_animals": 1, "max_animals": 1}
    single = make_env(gym={"name": "leg_counting", "config": config}, num_train_examples=0, num_eval_examples=3)
    plan = EvaluationPlan(every=0, held_out=[unseen], labelled={"legs_1": single, "sums": unseen}, greedy=False)
    results = train(make_trainer(max_steps=1), evaluation=plan)
    run = tmp_path / "run"
    saved = read(run, 1)
    assert (saved["n"], list(saved["tasks"]), list(saved["held_out"]["tasks"])) == (8, ["leg_counting"], ["chain_sum"])
    assert {label: scores["n"] for label, scores in saved["labelled"].items()} == {"legs_1": 3, "sums": 5}
    logged = next(line for line in lines_of(run / "metrics.jsonl") if line["step"] == 1 and "eval/accuracy" in line)
    for label, scores in saved["labelled"].items():
        answers = drawn(saved["rollouts"], "sampled", task=label)
        assert {each["part"] for each in answers} == {"labelled"}
        assert {each["question"] for each in answers} == {row["question"] for row in plan.labelled[label].eval_rows}
        assert scores["accuracy"] == logged[f"eval/{label}/accuracy"]
        assert scores["accuracy"] == pytest.approx(statistics.fmean(each["correct"] for each in answers))
    own = [each["reward"] for each in drawn(saved["rollouts"], "sampled", part="training")]
    assert logged["eval/reward"] == saved["reward"] == pytest.approx(statistics.fmean(own))
    assert [entry["label"] for entry in saved["questions"]] == [None, None, "legs_1", "sums"]
    assert results["eval_after"]["labelled"] == saved["labelled"]
    manifests = json.loads((run / "manifest.json").read_text())["evaluation_rows"]
    assert manifests == [unseen.manifest, *({"label": label, **env.manifest} for label, env in plan.labelled.items())]
    again = make_env(gym=UNSEEN, num_train_examples=0, num_eval_examples=5, manifest=manifests[-1])
    assert again.manifest == unseen.manifest, "a manifest with a label can be loaded"


@pytest.mark.slow
def test_evaluations_do_not_disturb_training(make_trainer: Any, unseen: Any, tmp_path: Path) -> None:
    """Metrics and rollouts are the same with many evaluations and without any, and weights are bit-identical."""
    weights, lines = [], []
    nothing = EvaluationPlan(every=0, before=False, after=False)
    for name, plan in (("with", EvaluationPlan(every=1, rollouts_per_example=3, held_out=[unseen])), ("out", nothing)):
        model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32)
        trainer = make_trainer(model=model, max_steps=3, output_dir=str(tmp_path / name))
        train(trainer, evaluation=plan)
        weights.append(model.state_dict())
        trained = [line for line in lines_of(tmp_path / name / "metrics.jsonl") if "reward" in line]
        lines.append(repeatable(trained))
    assert len(list((tmp_path / "with" / "eval_results").iterdir())) == 4
    assert not list((tmp_path / "out" / "eval_results").iterdir())
    assert lines[0] == lines[1]
    assert (tmp_path / "with" / "rollouts.jsonl").read_text() == (tmp_path / "out" / "rollouts.jsonl").read_text()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.slow
def test_held_out_tasks_alone_without_greedy_answers(
    make_trainer: Any, make_env: Any, unseen: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training tasks without evaluation rows have no overall result, and greedy metrics are missing everywhere."""
    plan = EvaluationPlan(held_out=[unseen], greedy=False, before=False, every=2)
    results = train(make_trainer(env=make_env(num_eval_examples=0), max_steps=3), evaluation=plan)
    assert (results["eval_before"], results["eval_after"]["step"]) == (None, 3)
    assert (results["eval_after"]["n"], results["eval_after"]["accuracy"]) == (0, None)
    run = tmp_path / "run"
    assert [path.stem[-1] for path in sorted((run / "eval_results").iterdir())] == ["2", "3"]
    saved = read(run, 3)
    assert saved["held_out"]["n"] == 5
    assert all(value is None for name, value in saved["held_out"].items() if name.startswith("greedy"))
    assert not drawn(saved["rollouts"], "greedy")
    logged = {name for line in lines_of(run / "metrics.jsonl") for name in line}
    assert "eval/held_out/accuracy" in logged
    assert "eval/accuracy" not in logged
    assert not any("greedy" in name or "pass@" in name for name in logged)
    # The rest contains the folder, which is named after this test.
    printed = capsys.readouterr().out.partition("Files in")[0]
    assert "accuracy" in printed
    assert "greedy" not in printed
    assert (run / "reward_curve.png").exists()


def test_questions_are_identified_by_hashes(make_trainer: Any, make_env: Any) -> None:
    """The hashes depend on the evaluation rows and the prompt, but not on the training rows."""

    def hashes(**changes: Any) -> tuple[str, str]:
        (entry,) = FixedEvaluation(trainer, EvaluationPlan(env=make_env(**changes))).questions
        return entry["manifest_sha256"], entry["prompts_sha256"]

    trainer = make_trainer()
    first = hashes()
    assert first == hashes(seed=5, num_train_examples=40)
    assert not set(first) & set(hashes(eval_seed=5))
    manifest, prompts = hashes(system_prompt="Answer!")
    assert manifest == first[0]
    assert prompts != first[1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"every": 2.5}, "every=2.5: must be a whole number"),
        ({"temperature": float("nan")}, "temperature=nan: must be a finite number"),
        ({"temperature": 0.0, "rollouts_per_example": 2, "greedy": False}, "all answers are the same"),
        ({"temperature": 0.0}, "set greedy to false"),
        ({"evry": 3}, "unknown field 'evry': did you mean 'every'"),
        ({"held_out": 3}, "held_out=3: must be a list"),
        ({"labelled": {"a b": 3}}, "labelled.a b: .*env must be an rg_env ReasoningGym or Environment"),
        ({"every": -1, "max_tokens": 0}, "every=-1: must be at least 0; .*max_tokens=0: must be at least 1"),
    ],
)
def test_invalid_plans_are_refused(fields: dict[str, Any], words: str) -> None:
    """The error is one line, raised when the plan is created."""
    with pytest.raises(InputError, match=words) as caught:
        EvaluationPlan(**fields)
    assert "\n" not in str(caught.value)


def test_plans_that_do_not_fit_the_trainer_are_refused(
    make_trainer: Any, make_env: Any, unseen: Any, tmp_path: Path
) -> None:
    """The error is raised before anything is written, and no folder is left behind."""
    with pytest.raises(InputError, match="nothing to evaluate"):
        evaluate_only(make_trainer(env=make_env(num_eval_examples=0)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for plan, words in (
        (EvaluationPlan(held_out=[make_env(num_train_examples=0)]), "leg_counting: a task cannot be both trained on"),
        (EvaluationPlan(held_out=[make_env(num_eval_examples=0)]), "no evaluation rows: set num_eval_examples"),
        (EvaluationPlan(held_out=[unseen], max_tokens=4096), "embedded engine has a context of .*: use at most"),
        (EvaluationPlan(labelled={"none": make_env(num_eval_examples=0)}), "no evaluation rows: set num_eval"),
    ):
        with pytest.raises(InputError, match=words):
            train(make_trainer(), evaluation=plan)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("label", ["maze", "leg_counting", "held_out", "status", "a/b", "a b", "", "x" * 81])
def test_invalid_labels_are_refused(unseen: Any, label: str) -> None:
    """Labels become metric names, so they must differ from tasks and other metrics."""
    with pytest.raises(InputError, match=r"labelled: .*label"):
        EvaluationPlan(labelled={label: unseen})


def test_a_failing_reward_of_a_held_out_task_is_an_error(make_trainer: Any, unseen: Any, tmp_path: Path) -> None:
    """A failing reward is never counted as 0."""

    def failing(completion: Any) -> float:
        raise KeyError("no")

    env = Environment(eval_rows=unseen.eval_rows, rewards=[failing])
    with pytest.raises(RewardError, match="failing"):
        train(make_trainer(), evaluation=EvaluationPlan(held_out=[env]))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_resumed_run_must_evaluate_the_same_questions(make_trainer: Any, make_env: Any, unseen: Any) -> None:
    """Otherwise, the results before and after training could not be compared."""
    train(make_trainer(max_steps=1), evaluation=EvaluationPlan(held_out=[unseen]))
    for other in ({}, {"labelled": {"sums": unseen}}, {"held_out": [unseen], "labelled": {"sums": unseen}}):
        with pytest.raises(InputError, match="used different questions"):
            train(make_trainer(max_steps=2), evaluation=EvaluationPlan(**other), resume="auto")
    results = train(make_trainer(max_steps=2), evaluation=EvaluationPlan(held_out=[unseen]), resume="auto")
    assert [results[name]["step"] for name in ("eval_before", "eval_after")] == [0, 2]


def test_when_evaluations_are_due() -> None:
    """By default, evaluations are a fifth of the run apart. `every=0` turns off those between start and end, and
    `before` determines whether there is one at the start."""
    assert [step for step in range(11) if EvaluationPlan().due(step, 10)] == [0, 2, 4, 6, 8, 10]
    assert [step for step in range(4) if EvaluationPlan().due(step, 3)] == [0, 1, 2, 3]
    assert [step for step in range(9) if EvaluationPlan(every=4, before=False).due(step, 100)] == [4, 8]
    assert [step for step in range(9) if EvaluationPlan(every=0).due(step, 8)] == [0]


@pytest.mark.slow
@pytest.mark.usefixtures("new_precision")
@pytest.mark.parametrize("bf16", [False, True])
def test_a_checkpoint_reproduces_the_evaluation_of_its_run(
    make_trainer: Any, make_env: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], bf16: bool
) -> None:
    """Greedy and sampled answers are identical, also in mixed precision, and neither optimizer state nor training files
    are created."""
    plan = EvaluationPlan(every=0, rollouts_per_example=2)
    train(make_trainer(bf16=bf16), evaluation=plan)
    policy = load_policy(str(tmp_path / "run" / "checkpoint-2"))
    trainer = make_trainer(model=policy.model, bf16=bf16, output_dir=str(tmp_path / "other"))
    capsys.readouterr()
    alone = evaluate_only(trainer, tmp_path / "alone", plan)
    left = [str(path.relative_to(tmp_path / "alone")) for path in (tmp_path / "alone").rglob("*.*")]
    assert left == ["eval_results/eval_step_2.json"]
    saved = read(tmp_path / "alone", 2)
    assert saved == read(tmp_path / "run", 2) == {**alone.summary(), "rollouts": alone.rollouts}
    assert read(tmp_path / "run", 0)["rollouts"] != saved["rollouts"]
    assert not trainer.optimizer.state
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("step 2", "greedy accuracy", "eval_step_2.json"))
    with pytest.raises(OutputFolderError, match=r"eval_step_2.json already exists"):
        evaluate_only(trainer, tmp_path / "alone", plan)


# --- `evaluation.tasks` in configs


PAPER = Path(__file__).parents[2] / "configs" / "train" / "paper"


def config(**sections: Any) -> TrainConfig:
    return TrainConfig.model_validate_json(json.dumps({"model": {"name": "tiny"}, **sections}))


def test_a_config_determines_the_rows_of_its_plan() -> None:
    """Held-out tasks share one environment, with all prompt and grading settings; each label has its own."""
    of_four = {"task": "spell_backward", "config": {"min_word_len": 4, "max_word_len": 4}}
    low = {"task": "spell_backward", "levels": {"word_len": 0}, "num_examples": 2}
    tasks = {"lcm": {"num_examples": 3}, "words_4": of_four, "maze": {"level": 0}, "words_low": low,
             "gcd": {"task": "gcd", "num_examples": 1}}  # fmt: skip
    evaluation = {"tasks": tasks, "num_held_out_examples": 5, "rollouts_per_example": 3, "every": 7}
    prompt = {"system_prompt": "Spell!", "placement": "user"}
    plan = evaluation_plan(
        config(tasks={"spell_backward": {}}, grading="upstream", prompt=prompt, evaluation=evaluation)
    )
    assert (plan.every, plan.rollouts_per_example, plan.env) == (7, 3, None)
    (held_out,) = plan.held_out
    assert Counter(row["info"]["rg_task"] for row in held_out.eval_rows) == {"lcm": 3, "maze": 5, "gcd": 1}
    lengths = {label: [len(row["answer"]) for row in env.eval_rows] for label, env in plan.labelled.items()}
    assert lengths == {"words_4": [4] * 5, "words_low": [3] * 2}
    for env in (held_out, *plan.labelled.values()):
        assert (list(env.train_rows), env.grading) == ([], "upstream")
        assert all(row["prompt"][0]["content"].startswith("Spell!") for row in env.eval_rows)


@pytest.mark.slow
def test_questions_at_other_difficulties_are_never_trained_on() -> None:
    """Such questions come from the evaluation split, so they are neither in the training rows nor drawn later by a
    curriculum at the same difficulty."""
    words = {f"words_{n}": {"task": "spell_backward", "config": {"min_word_len": n, "max_word_len": n}} for n in (3, 4)}
    whole = config(
        seed=7,
        tasks={"spell_backward": {}},
        splits={"num_train_examples": 1500, "num_eval_examples": 50},
        curriculum={"tasks": {"spell_backward": {}}},
        evaluation={"tasks": words, "num_held_out_examples": 100},
    )
    rows = [row for env in evaluation_plan(whole).labelled.values() for row in env.eval_rows]
    questions = {row["question"] for row in rows}
    assert len(questions) == 200
    assert {split_of(row["info"]["problem"]) for row in rows} == {"eval"}
    env = whole.environment()
    assert not questions & {row["question"] for row in env.train_rows}
    assert whole.curriculum
    curriculum = Curriculum(whole.curriculum, env, whole.seed, gym=whole.gym)
    drawn = {row["question"] for batch in range(40) for row in curriculum.replace(batch, env.train_rows[:16])}
    assert len(drawn) == 640
    assert {len(question.rpartition(": ")[2]) for question in drawn} == {3}
    assert not questions & drawn


def test_the_papers_curricula_are_evaluated_at_its_difficulties() -> None:
    """Each difficulty is evaluated on 50 questions, with and without a curriculum."""
    for task, expected in (("spell_backward", {"_4": {4}, "_6": {6}}), ("mini_sudoku", {"_8_10": {8, 9, 10}})):
        for end in ("", "_fixed"):
            plan = evaluation_plan(load_train_config(PAPER / f"curriculum_{task}{end}.yaml"))
            assert (plan.held_out, plan.rollouts_per_example) == ((), 3)
            for label, env in plan.labelled.items():
                metadata = [json.loads(row["info"]["entry"])["metadata"] for row in env.eval_rows]
                sizes = {each.get("word_len") or sum(row.count(0) for row in each["puzzle"]) for each in metadata}
                assert (sizes, len(metadata)) == (expected[label.removeprefix(task)], 50)
