"""What a run shows of its evaluations: one line each, the table of before and after, and the picture."""

import io
import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from result_files import run_evaluation
from rich.console import Console
from svg_pictures import Picture

from rg_env.core.run_folder import RunFolder
from rg_env.evaluation.plots.curves import plot_run
from rg_env.evaluation.results import Results, read_results
from rg_env.evaluation.scores import together
from rg_env.evaluation.tables import print_results
from rg_env.training.evaluation import metrics_of
from rg_env.training.reporting.console import examples_of, headline


def evaluation(
    step: int, tasks: Sequence[str], held_out: Sequence[str] = (), labels: Sequence[str] = (), **changes: Any
) -> Results:
    """Two answers to each of six problems a task, right more often in later steps; `changes` go into each record."""
    rng, problems = random.Random(step), []
    parts = {**dict.fromkeys(tasks, "training"), **dict.fromkeys(held_out, "held_out")}
    for task, part in {**parts, **dict.fromkeys(labels, "labelled")}.items():
        for _ in range(6):
            answers = [
                {
                    "part": part,
                    "task": task,
                    "question": "q",
                    "answer": "a",
                    "completion": "c",
                    "completion_tokens": 20,
                    "truncated": False,
                    "reward": 0.5,
                    "correct": rng.random() < 0.3 + step / 40,
                    **changes,
                }
                for _ in range(2)
            ]
            problems.append(answers)
    return run_evaluation(step, problems)


def printed(*evaluations: Results) -> list[str]:
    out = io.StringIO()
    print_results(together({f"step {each.step}": each for each in evaluations}), Console(file=out, width=120))
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_before_and_after_stand_side_by_side() -> None:
    """Each task with its part, then the training tasks and the held-out ones as a whole, then paired differences."""
    lines = printed(*(evaluation(step, ["maze", "chain_sum"], ["sudoku"], ["hard"]) for step in (0, 20)))
    heads = [line.split(" [")[0].rpartition(" ")[0] for line in lines]
    order = ["maze 6 –", "chain_sum 6 –", "sudoku (held out) 6 –", "hard 6 –", "training tasks, accuracy",
             "held-out tasks, accuracy"]  # fmt: skip
    assert [head for head in heads if head in order] == order
    assert "training tasks, questions 12 12" in lines
    assert any(line.startswith("training tasks, pass@2 ") for line in lines)
    paired = [line for line in lines if "step 20 - step 0" in line]
    assert [line.split(" step 20")[0] for line in paired] == ["training tasks", "maze", "chain_sum", "sudoku", "hard"]
    many = printed(evaluation(0, [f"task{i:02}" for i in range(50)]))
    assert "and 20 more" in many
    assert sum(line.startswith("task") for line in many) == 31  # and the heads


def test_labels_are_in_no_overall_figure() -> None:
    """They are shown in the given order; one line names the first three."""
    labels = ["words_6", "words_10", "maze_easy", "maze_hard"]
    found, without = evaluation(0, ["maze"], ["sudoku"], labels), evaluation(0, ["maze"], ["sudoku"])
    assert (found.overall(), found.overall("held_out")) == (without.overall(), without.overall("held_out"))
    assert list(found.scores("labelled")) == labels
    line = headline(found)
    assert line.startswith(f"{headline(without)}  words_6: accuracy ")
    assert line.endswith(" on 6 problems  and 1 more")
    assert metrics_of(found).items() >= metrics_of(without).items()
    assert metrics_of(found)["eval/words_10/accuracy"] == found.scores("labelled")["words_10"].accuracy


def test_an_environment_without_accuracy_is_shown_by_reward() -> None:
    """No accuracy is made up, nor pass@k."""
    found = evaluation(0, ["a", "b"], ["c"], correct=None, completion_tokens=None, truncated=None)
    assert headline(found) == "reward 0.50  on 12 problems  held out: reward 0.50 [0.50, 0.50]  on 6 problems"
    text = "\n".join(line for line in printed(found) if not line.startswith("Accuracies"))
    assert "a 6 – reward 0.500" in text
    assert "pass@" not in text


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ([0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1], [5, 4, 0]),
        ([1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [3, 0, 4]),
        ([1, 0], [1, 0], [0, 1]),
        ([None] * 4, [None] * 4, [3, 0, 1]),  # without accuracy, by reward
    ],
)
def test_examples_after_a_run_differ(before: list[Any], after: list[Any], shown: list[int]) -> None:
    """One that became right, one that became wrong and one unchanged; then more of them."""

    def made(step: int, correct: list[Any]) -> Results:
        rewards = [1.0 if step and number == 3 and each is None else 0.5 for number, each in enumerate(correct)]
        known = {"part": "training", "task": "maze", "truncated": False, "answer": "a", "completion": "c"}
        values = zip(correct, rewards, strict=True)
        return run_evaluation(step, [[{**known, "correct": each, "reward": reward}] for each, reward in values])

    pairs = examples_of(made(0, before), made(5, after))
    assert [old["problem"] for old, _ in pairs] == shown
    assert [new["row"] for _, new in pairs] == [old["row"] for old, _ in pairs]


def test_an_evaluation_reads_back_as_it_was(tmp_path: Path) -> None:
    """The file of a run is a results file; its summary is that of `train_results.json`."""
    for found in (evaluation(3, ["a", "b"], ["c"]), evaluation(3, ["a"]), evaluation(3, [], [], ["z", "y"])):
        run = RunFolder.create(tmp_path / str(len(found.tasks)))
        file = run.write_evaluation(3, json.loads(found.model_dump_json()))
        assert read_results(file) == found


def write(folder: Path, *evaluations: Results) -> None:
    for each in evaluations:
        RunFolder.create(folder).write_evaluation(each.step or 0, json.loads(each.model_dump_json()))


@pytest.mark.parametrize(
    ("tasks", "held_out", "labels"),
    [(1, 0, 0), (3, 2, 0), (40, 20, 0), (0, 2, 0), (1, 0, 2)],
    ids=["one", "several", "many", "held-out alone", "labels"],
)
def test_the_picture_grows_with_the_tasks(tmp_path: Path, tasks: int, held_out: int, labels: int) -> None:
    """One line per task below the curve, unless there is a single task. Matplotlib does not parse the folder's name as
    a formula."""
    counts = {"task": tasks, "unseen": held_out, "label": labels}
    names = [[f"{kind}{i}" for i in range(count)] for kind, count in counts.items()]
    folder = tmp_path / r"cost $\frac$ 2"
    write(folder, *(evaluation(step, *names) for step in (0, 10)))
    picture = plot_run(folder)
    assert picture
    lines = sum(counts.values())
    expected = 4.5 if lines == 1 else 5.3 + 0.22 * lines
    assert imread(picture).shape[0] / 120 == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("last", "apart"), [(3, 1), (25, 5), (60, 10)])
def test_steps_are_whole_and_round_in_the_picture(last: int, apart: int, tmp_path: Path) -> None:
    """Ticks are whole steps for a short run, and every third step for a longer one."""
    write(tmp_path, *(evaluation(step, ["maze"]) for step in (0, last)))
    words = Picture(lambda file: plot_run(tmp_path, file), tmp_path).words
    ticks = sorted(int(word) for word in words if word.isdecimal())
    assert {*range(0, last, apart)} <= {*ticks}
    assert {after - before for before, after in pairwise(ticks)} == {apart}
