"""Evaluations of one, several and many tasks, on the console and as pictures."""

import io
import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

from rg_env.evaluation.plots.run import plot_run
from rg_env.training.evaluation.scores import Evaluation
from rg_env.training.reporting.summary import headline, print_evaluation


def evaluation(
    step: int, tasks: Sequence[str], held_out: Sequence[str] = (), labels: Sequence[str] = (), **changes: Any
) -> Evaluation:
    """Two answers to each of six problems a task, right more often in later steps; `changes` go into each record."""
    rng, problems = random.Random(step), []
    parts = {**dict.fromkeys(tasks, "training"), **dict.fromkeys(held_out, "held_out")}
    for task, part in {**parts, **dict.fromkeys(labels, "labelled")}.items():
        for _ in range(6):
            first = {"problem": len(problems), "part": part, "task": task}
            answers = [
                {
                    **first,
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
    return Evaluation.of(step, problems, sampling={"temperature": 1.0}, questions=[])


def printed(found: Evaluation) -> str:
    out = io.StringIO()
    print_evaluation(Path("eval_step_0.json"), found, Console(file=out, width=120))
    return out.getvalue()


def test_one_task_is_not_repeated() -> None:
    """Its figures are the overall ones."""
    text = printed(evaluation(0, ["maze"]))
    assert "12" not in text.partition("frozen")[0]
    assert "6 frozen problems" in text
    assert "pass@2" in text
    assert "maze" not in text


def test_each_task_has_a_line() -> None:
    """Held-out ones below their own overall figure; of very many, the first."""
    text = printed(evaluation(0, ["maze", "chain_sum"], ["sudoku"]))
    assert "12 + 6 held-out frozen problems" in text
    lines = [line.strip().split("  ")[0] for line in text.splitlines()]
    order = ["accuracy", "chain_sum, accuracy", "maze, accuracy", "held-out accuracy", "sudoku, accuracy"]
    assert [line for line in lines if line in order] == order
    text = printed(evaluation(0, [f"task{i}" for i in range(50)]))
    assert "and 20 more tasks" in text
    assert text.count("task") == 31


def test_each_label_has_a_line() -> None:
    """In the order that they were given, below all others; their problems count in no overall figure."""
    found = evaluation(0, ["maze"], ["sudoku"], ["words_6", "words_10", "maze_easy", "maze_hard"])
    text = printed(found)
    assert "6 + 6 held-out + 24 labelled frozen problems" in " ".join(text.split())
    lines = [line.strip().split("  ")[0] for line in text.splitlines()]
    order = ["held-out accuracy", "words_6, accuracy", "words_10, accuracy", "maze_easy, accuracy"]
    assert [line for line in lines if line in order] == order
    without = evaluation(0, ["maze"], ["sudoku"])
    assert (found.overall, found.held_out) == (without.overall, without.held_out)
    line, before = headline(found), headline(without)
    assert line.startswith(f"{before}  words_6: accuracy ")
    assert "  words_10: accuracy " in line
    assert line.endswith(" on 6 problems  and 1 more")
    assert found.metrics().items() >= without.metrics().items()
    assert found.metrics()["eval/words_10/accuracy"] == found.labelled["words_10"].accuracy


def test_an_environment_without_accuracy_is_shown_by_reward() -> None:
    """No accuracy is made up, nor pass@k."""
    found = evaluation(0, ["a", "b"], ["c"], correct=None, completion_tokens=None, truncated=None)
    assert headline(found) == "reward 0.50  on 12 problems  held out: reward 0.50 ± 0.00  on 6 problems"
    text = printed(found)
    assert "a, reward" in text
    assert "accuracy" not in text
    assert "pass@" not in text


def test_an_evaluation_reads_back_as_it_was() -> None:
    """Through JSON, with and without held-out tasks and labels."""
    for found in (evaluation(3, ["a", "b"], ["c"]), evaluation(3, ["a"]), evaluation(3, [], [], ["z", "y"])):
        assert Evaluation.from_json(json.loads(json.dumps(found.as_json()))) == found


@pytest.mark.parametrize(
    ("tasks", "held_out", "labels"),
    [(1, 0, 0), (3, 2, 0), (40, 20, 0), (0, 2, 0), (1, 0, 2)],
    ids=["one", "several", "many", "held-out alone", "labels"],
)
def test_the_picture_grows_with_the_tasks(tmp_path: Path, tasks: int, held_out: int, labels: int) -> None:
    """A line a task below the curve; none for a single task."""
    (tmp_path / "eval_results").mkdir()
    counts = {"task": tasks, "unseen": held_out, "label": labels}
    names = [[f"{kind}{i}" for i in range(count)] for kind, count in counts.items()]
    for step in (0, 10):
        file = tmp_path / "eval_results" / f"eval_step_{step}.json"
        file.write_text(json.dumps(evaluation(step, *names).as_json()))
    picture = plot_run(tmp_path)
    assert picture
    height = imread(picture).shape[0] / 120
    lines = sum(counts.values())
    expected = 4.5 if lines == 1 else 5.3 + 0.22 * lines
    assert height == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("last", "apart"), [(3, 1), (25, 5), (60, 10)])
def test_steps_are_whole_and_round_in_the_picture(
    last: int, apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a short run halves would have room, of a longer one every third step."""
    (tmp_path / "eval_results").mkdir()
    for step in (0, last):
        values = json.dumps(evaluation(step, ["maze"]).as_json())
        (tmp_path / "eval_results" / f"eval_step_{step}.json").write_text(values)
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **kwargs: drawn.append(figure))
    assert plot_run(tmp_path)
    ticks = drawn[0].axes[0].get_xticks()
    assert {*range(0, last, apart)} <= {*ticks}
    assert {float(after - before) for before, after in pairwise(ticks)} == {apart}


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    """Matplotlib reads what is between dollar signs as a formula, and raises where it is none."""
    folder = tmp_path / r"cost $\frac$ 2"
    (folder / "eval_results").mkdir(parents=True)
    (folder / "eval_results" / "eval_step_0.json").write_text(json.dumps(evaluation(0, ["maze"]).as_json()))
    assert plot_run(folder)
