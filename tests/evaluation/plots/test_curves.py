"""Tests of how learning curves are read from runs and drawn."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from svg_pictures import Picture

from rg_env.core.statistics import runs_interval
from rg_env.errors import InputError
from rg_env.evaluation.plots.curves import Curve, averaged, plot_curves, read_curve
from rg_env.evaluation.plots.style import COLORS, look_of

RUN = re.compile(r"run_\d+")


def metrics(file: Path, rows: list[dict[str, Any]], end: str = "") -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + end, encoding="utf-8")
    return file


def test_reward_and_accuracy_are_read_by_step(tmp_path: Path) -> None:
    """Other lines and non-numeric values are ignored; the last line of a step counts."""
    rows = [
        {"step": 0, "eval/accuracy": 0.25},
        {"step": 2, "reward": 0.5, "loss": 1.0},
        {"step": 1, "reward": 1},
        {"step": 2, "eval/accuracy": 0.5, "eval/maze/accuracy": 0.1},
        {"step": 2, "reward": 0.75},
        {"step": 3, "reward": None, "eval/accuracy": math.nan},
        {"step": 3, "reward": True},
        {"step": 3, "train_runtime": 5.0},
    ]
    curve = read_curve(metrics(tmp_path / "metrics.jsonl", rows, end='{"step": 4, "rew'), "run")
    assert curve == Curve("run", {"reward": {1: 1.0, 2: 0.75}, "eval/accuracy": {0: 0.25, 2: 0.5}})
    assert list(curve.values["reward"]) == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has nothing to draw, because the run has not logged reward or eval/accuracy yet"),
        ('{"step": 1, "reward": 1}\n{"st\n{"step": 2, "reward": 1}\n', "is damaged: line 2"),
        ('{"reward": 1}\n', "is not a run's metrics.jsonl"),
        ('{"step": 1, "reward": 0.1, "completion": "<answer>0</answer>"}\n', "is not a run's metrics.jsonl"),
        (None, "cannot be read: No such file"),
    ],
)
def test_other_files_are_refused(text: str | None, message: str, tmp_path: Path) -> None:
    """Rollouts are rejected even though they also have steps and rewards."""
    file = tmp_path / "metrics.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError) as raised:
        read_curve(file, "run")
    assert str(raised.value).startswith(f"{file} {message}")
    assert "\n" not in str(raised.value)


def runs(count: int, steps: int = 10) -> list[Curve]:
    """Return runs with two evaluations each, each run ending higher than the one before."""
    rewards = [{step: number + step / 100 for step in range(1, steps + 1)} for number in range(count)]
    values = [{"reward": each, "eval/accuracy": {0: 0.0, steps: n / 100}} for n, each in enumerate(rewards)]
    return [Curve(f"run_{number}", each) for number, each in enumerate(values)]


def drawn(curves: list[Curve], folder: Path, title: str | None = None) -> Picture:
    return Picture(lambda file: plot_curves(curves, file, title), folder)


def test_each_of_a_few_runs_has_a_color(tmp_path: Path) -> None:
    """The colors are used in both panels and in the legend, and each accuracy curve ends at its value."""
    picture = drawn(runs(7), tmp_path)
    assert [*filter(RUN.fullmatch, picture.words)] == [f"run_{number}" for number in range(7)]
    assert "7 runs" in picture.words
    low, high = (max(each.y for each in picture.texts if each.text == text) for text in ("0.0", "1.0"))
    for number, color in enumerate(COLORS):
        marks = picture.marks(color.lower())
        assert len(marks) == 10 + 2 + 1  # rewards, accuracies and the legend
        zero, end = marks[10][1], marks[11][1]
        assert (zero - end) / (low - high) == pytest.approx(number / 100, abs=1e-3)


def test_intervals_are_bands_around_the_accuracies(tmp_path: Path) -> None:
    """A run has a band in its color if the intervals of its evaluations are known."""
    curves = [Curve(each.name, each.values, {0: (0.0, 0.25), 10: (0.5, 1.0)} if number else {}, 9, "asked")
              for number, each in enumerate(runs(2))]  # fmt: skip
    picture = drawn(curves, tmp_path)
    ticks = sorted((each.x, each.y, each.text) for each in picture.texts if each.text in ("0.0", "1.0"))
    (_, low, _), (_, high, _) = sorted(ticks[-2:], key=lambda tick: tick[2])  # the right panel's axis
    (band,) = picture.bands(COLORS[1].lower())
    text = 3.0  # half the height of a tick label
    assert (band.top, band.bottom) == (pytest.approx(high - text, abs=1.5), pytest.approx(low - text, abs=1.5))
    assert picture.bands(COLORS[0].lower()) == []
    assert "optimizer step (shaded: 95% intervals)" in picture.words
    assert "optimizer step" in picture.words  # label of the reward panel, which has no bands


def test_one_run_is_named_by_the_title(tmp_path: Path) -> None:
    """Long curves are drawn with a moving mean, which the label mentions."""
    assert drawn(runs(1), tmp_path).words.count("run_0") == 1
    words = drawn(runs(1, steps=100), tmp_path, "Mine").words
    assert "Mine" in words
    assert "run_0" not in words
    assert "(thick: mean over 5 steps)" in words
    only = Curve("a", {"reward": {1: 0.5}})
    words = drawn([only], tmp_path).words
    assert "reward, training batch" in words
    assert not any("accuracy" in each for each in words)


def test_each_of_many_runs_has_a_combination_of_color_and_marker(tmp_path: Path) -> None:
    """All runs are in the legend, and only up to 7 runs have bands."""
    curves = [Curve(each.name, each.values, {0: (0.0, 0.25), 10: (0.5, 1.0)}, 9, "asked") for each in runs(20)]
    picture = drawn(curves, tmp_path)
    assert [*filter(RUN.fullmatch, picture.words)] == [f"run_{number}" for number in range(20)]
    assert not any(picture.bands(color.lower()) for color in COLORS)
    assert len({tuple(look_of(number).values()) for number in range(49)}) == 49


def test_a_mean_curve_has_a_band_over_runs(tmp_path: Path) -> None:
    """Only steps that all runs have count. Intervals of accuracies are `runs_interval`, those of rewards Student's."""
    made = [Curve(f"r{n}", {"reward": {1: n, 2: n, 3: 0.0}, "eval/accuracy": {0: 0.1 * n, 2: 0.4}}, {}, 20, "asked")
            for n in range(3)]  # fmt: skip
    del made[0].values["reward"][3]
    mean = averaged("a", made)
    assert mean.name == "a (3 runs)"
    assert mean.values == {"reward": {1: 1.0, 2: 1.0}, "eval/accuracy": {0: pytest.approx(0.1), 2: pytest.approx(0.4)}}
    assert mean.intervals == {0: runs_interval([0.0, 0.1, 0.2], 20), 2: runs_interval([0.4] * 3, 20)}
    low, high = mean.reward_intervals[1]
    assert (1 - low, high - 1) == pytest.approx((4.303 / 3**0.5, 4.303 / 3**0.5), rel=1e-3)
    assert averaged("a", made[:2]).intervals == {}, "two runs are too few"
    assert averaged("a", made[:1]).name == "a"
    picture = drawn([mean, averaged("b", made[:2])], tmp_path)
    assert {"a (3 runs)", "b (2 runs)", "5 runs"} <= {*picture.words}
    assert len(picture.bands(COLORS[0].lower())) == 2
    assert picture.bands(COLORS[1].lower()) == []
    assert picture.words.count("(shaded: 95% intervals over runs)") == 2


@pytest.mark.parametrize("size", [(6.5, 3.0), (4.0, 6.0)])
def test_an_image_has_the_given_size(tmp_path: Path, size: tuple[float, float]) -> None:
    """The size includes title, labels and legend."""
    picture = Picture(lambda file: plot_curves(runs(3), file, "A title", size), tmp_path)
    assert [each / 72 for each in picture.size] == pytest.approx(size, rel=0.03)
    with pytest.raises(InputError, match=r"--size 1\.5x1\.5 is too small"):
        plot_curves(runs(3), tmp_path / "p.svg", size=(1.5, 1.5))
