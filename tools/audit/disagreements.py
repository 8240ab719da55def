"""Kinds of honest answers on which the library's grader and ours disagree, and the checks that recognize them.

`disagreements.yaml` lists the kinds of each task with the reason why ours is right. The audit assigns each disagreement
to the first kind of its task that has our verdict and whose check succeeds. A disagreement that fits no kind is
unexplained and fails the audit.

A check takes the stripped answer and the entry (and the argument from the file, if any), and never calls a grader: it
proves that the reason applies to this answer, so that a bug of ours is not attributed to the library.
"""

import functools
import itertools
import json
import math
import operator
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from rg_env.core.grading.graders import forms, logic
from rg_env.core.grading.graders.common import Entry
from rg_env.core.grading.graders.expressions import exact_value
from rg_env.core.grading.graders.gold import corrected
from rg_env.core.grading.graders.move_games import read_board

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


DISAGREEMENTS: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("disagreements.yaml").read_text(encoding="utf-8")
)
"""Kinds of disagreement by task and short name."""


def explanation(task: str, entry: Entry, answer: str, right: bool) -> str | None:
    """Return the name of this disagreement's kind, given our verdict `right`, or None if it is unexplained."""
    for name, kind in DISAGREEMENTS.get(task, {}).items():
        arguments = [kind["argument"]] if "argument" in kind else []
        if kind["right"] is right and globals()[kind["check"]](answer.strip(), entry, *arguments):
            return name
    return None


def _numbers(text: str) -> list[float]:
    return [float(number) for number in _NUMBER.findall(text)]


def within(answer: str, entry: Entry, most: float, relative: float = 0.0) -> bool:
    """Whether some numbers in the answer differ from the gold numbers, but by at most `most` plus the share `relative`
    of the gold number, and none is missing or extra."""
    gold = _numbers(entry["answer"])
    parts = [part for part in re.split(r"[\s,'\[\]]+", answer) if part]
    if len(parts) != len(gold) or not all(_NUMBER.fullmatch(part) for part in parts):
        return False
    given = [float(part) for part in parts]
    limits = [(most + relative * abs(number)) * (1 + 1e-9) for number in gold]
    return given != gold and all(abs(a - b) <= limit for a, b, limit in zip(given, gold, limits, strict=True))


def within_percent(answer: str, entry: Entry) -> bool:
    """Whether the answer's numbers differ from the gold numbers by at most 1% (or 0.000001)."""
    return within(answer, entry, 1e-6, relative=1e-2)


def angle_within(answer: str, entry: Entry, most: float) -> bool:
    """Whether the answer is within `most` of the stored angle if degree signs are ignored."""
    return within(answer.replace("°", ""), entry, most)


def same_but_for(answer: str, entry: Entry, signs: str) -> bool:
    """Whether the answer equals the gold answer if matches of the pattern `signs` are ignored."""
    return re.sub(signs, "", answer) == re.sub(signs, "", str(entry["answer"]))


def is_json(answer: str) -> bool:
    try:
        json.loads(answer)
    except ValueError:
        return False
    return True


def degree_sign_inside(answer: str, entry: Entry) -> bool:
    """Whether the answer is within 0.01 of the stored angle, but has a degree sign that is not at its end."""
    near = angle_within(answer, entry, 0.01)
    return "°" in answer.rstrip("°") and (near or _numbers(answer.replace("°", "")) == _numbers(entry["answer"]))


def bracket_inside(answer: str, entry: Entry) -> bool:
    """Whether the answer is the stored coordinates, but with brackets that do not enclose both coordinates."""
    bare = re.sub(r"[()]", "", answer)
    return _numbers(bare) == _numbers(entry["answer"]) and not re.fullmatch(r"\([^()]*\)|[^()]*", answer)


def skipped_action(answer: str, entry: Entry) -> bool:
    """Whether the plan has an action that is impossible under the rules or does not name an agent, box or square."""
    squares = {name: list(items) for name, items in entry["metadata"]["initial_state"].items()}
    for step in json.loads(answer):
        arrivals = []
        for agent, action in step.items():
            where = re.fullmatch(r"Agent\[(\d\.5), (\d\.5)\]", agent)
            what = re.fullmatch(r"move\((box_\w+), (?:square\[(\d\.5), (\d\.5)\]|(target_\w+))\)", action)
            here = squares.get(f"{where[1]}_{where[2]}") if where else None
            if not where or not what or here is None or what[1] not in here:
                return True
            here.remove(what[1])
            if what[4]:
                if what[4] not in here:
                    return True
                here.remove(what[4])
                continue
            if abs(float(what[2]) - float(where[1])) + abs(float(what[3]) - float(where[2])) != 1:
                return True
            arrivals.append((f"{what[2]}_{what[3]}", what[1]))
        for there, box in arrivals:
            if there not in squares:
                return True
            squares[there].append(box)
    return False


def twice_in_a_step(answer: str, entry: Entry) -> bool:
    return len(re.findall(r"Agent\[", answer)) > len(json.loads(answer))


def floats_alone_differ(answer: str, entry: Entry) -> bool:
    """Whether the answer equals the gold value except for floats that differ after the ninth digit."""
    gold, given = _numbers(entry["answer"]), _numbers(answer)
    apart = [(a, b) for a, b in zip(given, gold, strict=False) if a != b]
    words = [re.sub(r"\s+", "", _NUMBER.sub("#", text)) for text in (answer, entry["answer"])]
    return words[0] == words[1] and all(abs(a - b) <= 1e-9 * abs(b) and b % 1 for a, b in apart)


def prefix_of_gold(answer: str, entry: Entry) -> bool:
    """Whether the answer is a prefix of the gold number, or vice versa, when both are written with at most ten digits.
    The library gives such an answer full credit."""
    value, gold = (forms.attempt(forms.rational, text) for text in (answer, entry["answer"]))
    if value is None or gold is None or value == gold:
        return False
    shorter, longer = sorted((f"{float(value):.10g}", f"{float(gold):.10g}"), key=len)
    return longer.startswith(shorter)


def small_probability(answer: str, entry: Entry) -> bool:
    """Whether the answer is within 0.0001 of a probability below 0.002, but off by more than 5% of that probability."""
    value, gold = (forms.attempt(forms.rational, text) for text in (answer, entry["answer"]))
    return value is not None and gold is not None and gold < 0.002 and gold / 20 < abs(value - gold) <= 1.0001e-4


def imaginary_first(answer: str, entry: Entry) -> bool:
    """Whether the answer is `bi + a` with the numbers from the stored result."""
    match = re.fullmatch(r"([+-]?)\s*([\d.]+)i\s*([+-])\s*(?:([+-])\s*)?([\d.]+)", answer.strip())
    found = match or re.fullmatch(r"([+-]?)\s*([\d.]+)i\s+()(-?)([\d.]+)", answer.strip())
    if not found:
        return False
    imaginary = float(found[1] + found[2])
    real = float(found[5]) * (-1) ** ((found[3] == "-") + (found[4] == "-"))
    return [real, imaginary] == list(entry["metadata"]["result"])


def near_complex(answer: str, entry: Entry) -> bool:
    """Whether the answer differs from the stored result, but by at most 0.000001."""
    try:
        value = complex(re.sub(r"\s", "", answer).strip("()").replace("i", "j"))
    except ValueError:
        return False
    return 0 < abs(value - complex(*entry["metadata"]["result"])) <= 1.0001e-6


def grid_of_digits(answer: str, entry: Entry) -> bool:
    """Whether the answer has the stored digits in order; the signs and spaces between the digits may differ."""
    return re.findall(r"\d", answer) == re.findall(r"\d", entry["answer"])


def role_of_nobody(answer: str, entry: Entry) -> bool:
    """Whether the answer is a correct sentence followed by a role without a person."""
    first, _, rest = answer.rpartition(".")
    return first == entry["answer"].rstrip(".") and len(rest.split()) == 1


def more_words(answer: str, entry: Entry) -> bool:
    given, gold = answer.casefold().split(), entry["answer"].casefold().split()
    return len(given) > len(gold) and given[: len(gold)] == gold


def no_formula(answer: str, entry: Entry) -> bool:
    return forms.attempt(lambda text: logic.parse(text, entry["metadata"]["variables"]), answer) is None


def restates(answer: str, entry: Entry) -> bool:
    """Whether the answer implies a clause that follows from a single premise, but does not imply any smaller part of
    that clause. All clauses with the answer's variables are tried."""
    table = logic.columns(entry["metadata"]["variables"])
    always = (1 << (1 << len(table))) - 1
    value, *premises = (_column(text, table) for text in (answer, *entry["metadata"]["premises"]))
    literals = [(0, column, always ^ column) for name, column in table.items() if name in answer]
    clauses = {functools.reduce(operator.or_, clause, 0) for clause in itertools.product(*literals)} - {always}
    implied = [clause for clause in clauses if not value & ~clause]
    parts = [clause for clause in implied if not any(other != clause and not other & ~clause for other in implied)]
    return any(not premise & ~part for part in parts for premise in premises)


def a_variable(answer: str, entry: Entry) -> bool:
    """Whether the answer is a single variable that follows from the premises together, but from no premise alone."""
    table = logic.columns(entry["metadata"]["variables"])
    name = answer.strip("() ")
    premises = [_column(text, table) for text in entry["metadata"]["premises"]]
    if name not in table or functools.reduce(operator.and_, premises) & ~table[name]:
        return False
    return all(premise & ~table[name] for premise in premises)


def _column(text: str, table: Mapping[str, int]) -> int:
    return logic.truth(logic.parse(text, table, logic.MAX_PREMISE_TOKENS), table)


def other_numbers(answer: str, entry: Entry) -> bool:
    return sorted(map(int, re.findall(r"\d+", answer))) != sorted(entry["metadata"]["numbers"])


def clipped_move(answer: str, entry: Entry) -> bool:
    """Whether a vehicle is blocked before its move ends."""
    board = read_board(entry["metadata"]["board_config"])
    state = list(board.start)
    for letter, steps in re.findall(r"([A-Z])([+-]\d+)", answer):
        vehicle = ord(letter) - ord("A")
        if vehicle >= len(state):
            return True
        others = board.taken(state) ^ board.masks[vehicle][state[vehicle]]
        for _ in range(abs(int(steps))):
            place = state[vehicle] + (1 if int(steps) > 0 else -1)
            if not 0 <= place < len(board.masks[vehicle]) or others & board.masks[vehicle][place]:
                return True
            state[vehicle] = place
    return False


def days_and_more(answer: str, entry: Entry) -> bool:
    """Whether the question asks for days, and the answer is the right number, but not followed by exactly `days`."""
    first, *rest = answer.split()
    return entry["metadata"]["task_type"] == "date" and first == entry["answer"].split()[0] and rest != ["days"]


def no_clock(answer: str, entry: Entry) -> bool:
    """Whether the answer has a colon but not the form HH:MM, HH:MM:SS or HH:MM:SS.mmm, with or without days."""
    return ":" in answer and not re.fullmatch(r"-?(\d+ days, )?\d\d:\d\d(:\d\d(\.\d{3})?)?", answer)


def elapsed_time(answer: str, entry: Entry) -> bool:
    """Whether the answer is the actual elapsed time, and the stored answer differs. Whole days are ignored if the
    answer has none."""
    return answer != entry["answer"] and abs(_seconds_short(answer, entry)) < 1e-6


def rounded_minutes(answer: str, entry: Entry) -> bool:
    """Whether the answer is the elapsed time rounded up to whole minutes."""
    return answer.count(":") == 1 and -30 <= _seconds_short(answer, entry) < 0


def _seconds_short(answer: str, entry: Entry) -> float:
    """Return how many seconds the answer is below the elapsed time, or NaN if it is not a time."""
    match = re.fullmatch(r"(?:(\d+) days, )?(\d\d):(\d\d)(?::(\d\d(?:\.\d{3})?))?", answer)
    if match is None:
        return math.nan
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    start, end = (datetime.fromisoformat(entry["metadata"][f"{edge}_time"]) for edge in ("start", "end"))
    apart = (end - start).total_seconds() - (86400 * days + 3600 * hours + 60 * minutes + seconds)
    return apart if match[1] else (apart + 43200) % 86400 - 43200


def time_behind_weekday(answer: str, entry: Entry) -> bool:
    """Whether the answer is the time elapsed between two times that follow `(Monday)` or another weekday. Seconds are
    ignored if the answer has none."""
    edges = re.findall(r"(\d{4}-\d\d-\d\d) \(\w+day\) (\d\d:\d\d:\d\d [+-]\d{4})", entry["question"])
    match = re.fullmatch(r"(\d+) days, (\d\d):(\d\d)(?::(\d\d))?", answer)
    if match is None or len(edges) != 2:
        return False
    start, end = (datetime.strptime(" ".join(edge), "%Y-%m-%d %H:%M:%S %z").timestamp() for edge in edges)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 0 <= end - start - (86400 * days + 3600 * hours + 60 * minutes + seconds) < (1 if match[4] else 60)


def no_time_of_day(answer: str, entry: Entry) -> bool:
    return bool(re.fullmatch(r"(\d+ days), [0:.]+", entry["answer"])) and answer.rstrip(", ") in entry["answer"]


def spacing(answer: str, entry: Entry) -> bool:
    return answer.split() == str(entry["answer"]).split()


def value_of_expression(answer: str, entry: Entry) -> bool:
    """Whether the answer is the exact value of the expression, and the stored answer differs."""
    exact = exact_value(entry["metadata"]["expression"])
    return forms.attempt(forms.rational, answer) == exact != forms.rational(entry["answer"])


def same_words(answer: str, entry: Entry) -> bool:
    """Whether the answer has the same words as the gold answer, but in a different order."""
    given, gold = answer.split(), entry["answer"].split()
    return given != gold and sorted(given) == sorted(gold)


def unknown_vertex(answer: str, entry: Entry) -> bool:
    """Whether the map has a color for something that is not a vertex of the graph."""
    vertices = {str(vertex) for vertex in entry["metadata"]["puzzle"]["vertices"]}
    return is_json(answer) and not {str(key) for key in json.loads(answer)} <= vertices


def ten_letters(answer: str, entry: Entry) -> bool:
    """Whether at least ten letters, but not all, are in the right positions."""
    gold = entry["answer"]
    return answer != gold and sum(a == b for a, b in zip(answer, gold, strict=False)) >= 10


def more_roots(answer: str, entry: Entry) -> bool:
    """Whether the answer has the stored roots and additional numbers."""
    given, gold = _numbers(answer), _numbers(entry["answer"])
    return len(given) > len(gold) and all(any(abs(a - b) <= 1e-4 for a in given) for b in gold)


def matches(answer: str, entry: Entry, pattern: str) -> bool:
    """Whether the answer contains a match of this regular expression."""
    return bool(re.search(pattern, answer))


def empty_zero(answer: str, entry: Entry) -> bool:
    return answer == "0" and not entry["answer"]


def another_text(answer: str, entry: Entry) -> bool:
    return answer.casefold() != entry["answer"].casefold()


def always_true(answer: str, entry: Entry) -> bool:
    return entry["metadata"]["equation"].strip() == "0 = 0"


def more_moves(answer: str, entry: Entry) -> bool:
    return answer.lower().count("move") > entry["metadata"]["solution_length"]


def another_point(answer: str, entry: Entry) -> bool:
    """Whether the answer is a point of the board, but not the stored one."""
    return bool(re.fullmatch(r"[A-Za-z]\d{1,2}", answer)) and answer != entry["answer"]


def other_numbers_as_many(answer: str, entry: Entry) -> bool:
    """Whether the answer has as many numbers as the stored answer, but not the same ones."""
    given, gold = _numbers(answer), _numbers(entry["answer"])
    return given != gold and len(given) == len(gold)


def another_plan(answer: str, entry: Entry) -> bool:
    """Whether the answer is a JSON list, but not the stored one."""
    return answer != entry["answer"] and is_json(answer) and isinstance(json.loads(answer), list)


def moves_without_json(answer: str, entry: Entry) -> bool:
    """Whether the answer has jug moves with only brackets, quotes and commas between them, but is not valid JSON."""
    rest, moves = re.subn(r"(?:fill|empty) [A-Z]\b|pour [A-Z]->[A-Z]\b", "", answer)
    return moves > 0 and not rest.strip("[]\"', ") and not re.search(r"\w", rest) and not is_json(answer)


def in_other_case(answer: str, entry: Entry, line: str) -> bool:
    """Whether all lines match `line` if letter case is ignored, but not all lines match exactly."""
    lines = rf"(?:{line}\s*)+"
    return bool(re.fullmatch(lines, answer, re.IGNORECASE)) and not re.fullmatch(lines, answer)


def more_terms(answer: str, entry: Entry) -> bool:
    """Whether the answer has more terms than the stored polynomial, or contains `expand`."""
    return "expand" in answer or len(re.findall(r"[+-]", answer)) > len(re.findall(r"[+-]", entry["answer"]))


def stored_wrong(answer: str, entry: Entry, task: str) -> bool:
    """Whether the answer is the stored one, but wrong under the question's rules (see `corrected`)."""
    return answer.strip("\"'") == entry["answer"] != corrected(task, entry)["answer"]


def by_the_rules(answer: str, entry: Entry, task: str) -> bool:
    """Whether the answer is the corrected gold answer, and the stored answer differs."""
    return answer == corrected(task, entry)["answer"] != entry["answer"]


def result_of_last_round(answer: str, entry: Entry) -> bool:
    """Whether the answer is the result of playing the rounds by the rules in the question's text."""
    hand = list(re.findall(r"initial cards ([A-Z]+)", entry["question"])[0])
    result = ""
    for added, removed in re.findall(r"Add an? ([A-Z]) card and remove an? ([A-Z]) card", entry["question"]):
        runs = ["".join(chr(ord(added) + step) for step in steps) for steps in ((-2, -1), (-1, 1), (1, 2))]
        result = "peng" if hand.count(added) > 1 else "chi" if any(set(run) <= set(hand) for run in runs) else "pass"
        hand.append(added)
        hand.remove(removed)
    return answer.casefold() == result


def stored_result_breaks_rules(answer: str, entry: Entry) -> bool:
    return answer == entry["answer"] and not result_of_last_round(answer, entry)


def idle_press(answer: str, entry: Entry) -> bool:
    """Whether the answer is a sequence of button names and includes a press while the light has the wrong color."""
    if not re.fullmatch(r"(?:[A-Za-z]|[\s,→>-])+", answer) or re.search(r"[A-Za-z]{2}", answer):
        return False
    colors = {button["name"]: button["active_state"] for button in entry["metadata"]["buttons"]}
    light = entry["metadata"]["initial_state"]
    for name in re.findall(r"[A-Z]", answer.upper()):
        if colors.get(name) not in ("any", light):
            return True
        light = "green" if light == "red" else "red"
    return False


def undistributed_middle(answer: str, entry: Entry, verdict: str) -> bool:
    """Whether the answer is `verdict`, and the premises are "All A are B" and "Some B are (not) C": neither makes a
    statement about every B."""
    metadata = entry["metadata"]
    first = re.fullmatch(r"All \w+ are (\w+)", metadata["premise1"])
    middle = first is not None and metadata["premise2"].startswith(f"Some {first[1]} are ")
    return answer.casefold() == verdict and middle
