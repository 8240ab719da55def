"""The section of a card on what was measured: before and after training, on the same frozen questions.

Means stand in the evaluations of the run; intervals and p-values are computed from the rollouts in them, as everywhere
in rg_env (`core.statistics`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rg_env.core.json_values import dict_of, number_of, text_of, whole_of
from rg_env.core.statistics import paired_difference, share_interval
from rg_env.errors import InputError
from rg_env.publish.hub.markdown import code, table, text
from rg_env.publish.hub.subject import Subject

Values = Mapping[str, Any]
Answers = dict[str, list[float]]
_PARTS = (("training", "Tasks that it was trained on"), ("held_out", "Tasks that it was not trained on"),
          ("labelled", "Other questions, under labels of their own"))  # fmt: skip
_ALL = ""
"""Stands for all tasks of a part."""


def results(subject: Subject) -> str:
    """The section, without its title."""
    record, after = subject.record, subject.after
    if record is None:
        return "No files of a training run lie beside these weights: nothing that was measured is known."
    before = record.before
    if after is None and before is None:
        return "The run has no evaluation of these weights: nothing was measured."
    lines = [_about(before, after, subject), ""]
    for part, title in _PARTS:
        rows = list(_rows(part, before, after))
        if rows:
            lines += [f"**{title}**", "", table(_head(subject, before, after), rows), ""]
    notes = ["Accuracy: the share of answers that are right, with its interval of 95 %, clustered by question."]
    if before and after:
        notes.append("Differences: after minus before, on the same questions; p by permutation, two-sided.")
    lines.append(" ".join(notes))
    return "\n".join(lines)


def named_scores(evaluation: Values) -> Iterator[tuple[str, str, Values]]:
    """Part, name and scores of all that was asked: tasks, held-out ones, labels."""
    for name, scores in dict_of(evaluation.get("tasks")).items():
        yield "training", name, dict_of(scores)
    for name, scores in dict_of(dict_of(evaluation.get("held_out")).get("tasks")).items():
        yield "held_out", name, dict_of(scores)
    for name, scores in dict_of(evaluation.get("labelled")).items():
        yield "labelled", name, dict_of(scores)


def _about(before: Values | None, after: Values | None, subject: Subject) -> str:
    one = after or before or {}
    sampling = dict_of(one.get("sampling"))
    answers = whole_of(sampling.get("rollouts_per_example"))
    told = [f"temperature {sampling['temperature']:g}"] if number_of(sampling.get("temperature")) is not None else []
    told += [f"top_p {sampling['top_p']:g}"] if number_of(sampling.get("top_p")) is not None else []
    told += [f"at most {sampling['max_tokens']} new tokens"] if whole_of(sampling.get("max_tokens")) else []
    many = f"{answers} sampled answer{'' if answers == 1 else 's'} to each question" if answers else "sampled answers"
    greedy = ", and one answered greedily" if sampling.get("greedy") else ""
    lines = [f"Measured by the run itself, on frozen questions that it was not trained on: {many}"]
    lines[0] += f" ({', '.join(told)})" if told else ""
    lines[0] += f"{greedy}."
    if after is None:
        step = subject.source.step
        lines.append(
            "**No file says after which step these weights were saved**: only those before training are known."
            if step is None
            else f"**These weights, of step {step}, were not evaluated**: only those before were."
        )
    elif rounded := subject.source.rounded_to:
        lines.append(
            f"**Measured before these weights were rounded to {code(rounded)}**: how these answer was not measured."
        )
    if after is not None and before is None:
        lines.append("No evaluation from before training is among the run's files: there is nothing to compare with.")
    return " ".join(lines)


def _head(subject: Subject, before: Values | None, after: Values | None) -> list[str]:
    columns = ["before"] if before else []
    columns += [f"after {subject.source.step} steps"] if after else []
    return ["accuracy", "questions", *columns, *(["difference", "p"] if before and after else [])]


def _rows(part: str, before: Values | None, after: Values | None) -> Iterator[list[str]]:
    there = [side for side in (before, after) if side]
    sides = [{name: scores for kind, name, scores in named_scores(side) if kind == part} for side in there]
    if part == "training" and len(sides[-1]) > 1:
        sides = [{_ALL: side, **scores} for side, scores in zip(there, sides, strict=True)]
    paired = _same_questions(before, after)
    for name in sides[-1]:
        for kind, key, field in (("sampled", "correct", "accuracy"), ("greedy", "greedy_correct", "greedy_accuracy")):
            if all(number_of(dict_of(side.get(name)).get(field)) is None for side in sides):
                continue
            found = [_answers(side, part, name, key) for side in there]
            means = [dict_of(side.get(name)).get(field) for side in sides]
            cells = [_cell(mean, answers) for mean, answers in zip(means, found, strict=True)]
            if before and after:
                cells += _difference(*found) if paired else ["other questions", ""]
            shown = "all of them" if name == _ALL else code(name)
            yield [f"{shown}, {kind}", str(whole_of(dict_of(sides[-1].get(name)).get("n")) or ""), *cells]


def _answers(evaluation: Values, part: str, name: str, key: str) -> Answers:
    """By problem, whether its answers were right."""
    found: Answers = {}
    rollouts = evaluation.get("rollouts")
    for record in rollouts if isinstance(rollouts, list) else []:
        value = dict_of(record)
        ours = value.get("part") == part and name in (_ALL, value.get("task"))
        if ours and isinstance(value.get(key), bool):
            found.setdefault(str(value.get("problem")), []).append(float(value[key]))
    return found


def _cell(value: object, answers: Answers) -> str:
    mean = number_of(value)
    if mean is None:
        return "not measured"
    if not answers:
        return f"{mean:.3f}"
    low, high = share_interval(list(answers.values()))
    return f"{mean:.3f} \\[{low:.3f}, {high:.3f}\\]"


def _difference(before: Answers, after: Answers) -> list[str]:
    try:
        found = paired_difference([(after, before)])
    except InputError:  # no rollouts in one of the files
        return ["", ""]
    low, high = found.interval
    return [f"{found.value:+.3f} \\[{low:+.3f}, {high:+.3f}\\]", f"{found.p_value:.4f}"]


def _same_questions(before: Values | None, after: Values | None) -> bool:
    return before is not None and after is not None and before.get("questions") == after.get("questions")


def truncation(evaluation: Values) -> str | None:
    """How many answers were cut off, in a sentence; None: the server told no lengths."""
    share = number_of(evaluation.get("truncated"))
    if share is None:
        return None
    limit = whole_of(dict_of(evaluation.get("sampling")).get("max_tokens"))
    of = f" of {limit} tokens" if limit else ""
    return f"{f'{share:.3f}' if share else 'None'} of the sampled answers were cut off by the limit{of}"


def monitors(values: Values) -> list[str]:
    """What monitors said, to the letter."""
    found = values.get("monitors")
    return [text(line) for line in found if text_of(line)] if isinstance(found, list) else []
