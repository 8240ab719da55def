"""Solvers of number puzzles and logic puzzles."""

import re
from fractions import Fraction
from itertools import combinations, permutations, product

from solvers.search import assign

Part = tuple[Fraction, str]


def _reach(parts: list[Part], target: int) -> str | None:
    """Combine two parts at a time until one part with the target's value is left."""
    if len(parts) == 1:
        return parts[0][1] if parts[0][0] == target else None
    for i, j in combinations(range(len(parts)), 2):
        rest = [part for at, part in enumerate(parts) if at not in (i, j)]
        (a, one), (b, other) = parts[i], parts[j]
        ways = [(a + b, f"({one}+{other})"), (a - b, f"({one}-{other})"), (b - a, f"({other}-{one})")]
        ways += [(a * b, f"({one}*{other})")]
        ways += [(a / b, f"({one}/{other})")] if b else []
        ways += [(b / a, f"({other}/{one})")] if a else []
        for way in ways:
            if found := _reach([way, *rest], target):
                return found
    return None


def puzzle24(question: str) -> str:
    numbers = re.findall(r"\d+", question.partition("using")[2].partition(".")[0])
    return _reach([(Fraction(n), n) for n in numbers], 24) or "none"


def cryptarithm(question: str) -> str:
    words = re.findall(r"^[+ ]*([A-Z]+)$", question, re.MULTILINE)
    *addends, total = words
    letters = sorted(set("".join(words)))
    weights = dict.fromkeys(letters, 0)
    for word, sign in [(word, 1) for word in addends] + [(total, -1)]:
        for place, letter in enumerate(reversed(word)):
            weights[letter] += sign * 10**place
    leading = {word[0] for word in words}
    order = sorted(letters, key=lambda letter: -abs(weights[letter]))

    def choices(done: dict[str, int], letter: str) -> list[int]:
        """Return the digits with which the other letters can still bring the sum to zero."""
        left = sum(weights[other] * digit for other, digit in done.items())
        most = 9 * sum(abs(weights[other]) for other in order[len(done) + 1 :])
        free = set(range(letter in leading, 10)) - set(done.values())
        return [digit for digit in free if abs(left + digit * weights[letter]) <= most]

    return ",".join(f"{letter}={digit}" for letter, digit in assign(order, choices).items())


def self_reference(question: str) -> str:
    statements = re.findall(r"Statement \d: '(.*)'", question)

    def holds(text: str, truths: tuple[bool, ...]) -> bool:
        true, false = sum(truths), len(truths) - sum(truths)
        if found := re.match(r"(At least|At most|Exactly) (\d) of these \d statements are (true|false)", text):
            count, n = (true if found[3] == "true" else false), int(found[2])
            return {"At least": count >= n, "At most": count <= n, "Exactly": count == n}[found[1]]
        if found := re.match(r"Either Statement (\d) or Statement (\d) is true, but not both", text):
            return truths[int(found[1]) - 1] != truths[int(found[2]) - 1]
        if "true statements is a prime" in text:
            return true in (2, 3, 5, 7)
        assert "false statements is a composite" in text
        return false in (4, 6)

    worlds = product((False, True), repeat=len(statements))
    return str(sum(all(holds(text, world) == t for text, t in zip(statements, world, strict=True)) for world in worlds))


def syllogism(question: str) -> str:
    """Search for a world of at most three individuals in which the premises hold and the conclusion does not."""
    texts = re.findall(r"(?:^\d\. |that:\n)(.*?)\??$", question, re.MULTILINE)
    forms = [re.match(r"(All|No|Some) (\w+) are (not )?(\w+)", text).groups() for text in texts]
    terms = sorted({term for _, subject, _, predicate in forms for term in (subject, predicate)})
    kinds = [dict(zip(terms, bits, strict=True)) for bits in product((False, True), repeat=len(terms))]

    def holds(form: tuple[str, str, str | None, str], world: tuple[dict[str, bool], ...]) -> bool:
        quantifier, subject, negation, predicate = form
        hits = [being[predicate] != bool(negation) for being in world if being[subject]]
        return {"All": all(hits), "No": not any(hits), "Some": any(hits)}[quantifier]

    worlds = [world for size in range(4) for world in combinations(kinds, size)]
    *premises, conclusion = forms
    return "No" if any(all(holds(p, w) for p in premises) and not holds(conclusion, w) for w in worlds) else "Yes"


def circuit_logic(question: str) -> str:
    """Follow the wires in the drawing from each gate's inputs to the left, and from its output to the right."""
    values = dict(re.findall(r"^  ([A-Z]+) = ([01])", question, re.MULTILINE))
    drawing = question.partition("circuit.\n\n")[2].partition("\n\n\nLegend")[0].splitlines()
    columns = {line.index("┐"): line.partition(":")[0].strip() for line in drawing[: len(values)]}
    gates = {"&&": all, "↑↑": lambda x: not all(x), "⊕⊕": lambda x: sum(x) % 2 == 1}
    gates |= {"++": any, "↓↓": lambda x: not any(x)}
    outputs: list[bool] = []
    inputs: list[bool] = []
    for line in [*drawing[len(values) :], ""]:
        at = max((column for column in columns if line[column : column + 1] in ("├", "└")), default=None)
        if at is not None:
            wire, sign = re.match(r"[├└]([─>o]*)│(\S\S)", line[at:]).groups()
            inputs.append((values[columns[at]] == "1") != (">o" in wire))
        elif inputs:
            outputs.append(bool(gates[sign](inputs)))
            inputs = []
    last = re.findall(r"(&&|↑↑|⊕⊕|\+\+|↓↓)─── OUT", question)[0]
    return str(int(gates[last](outputs)))


def acre(question: str) -> str:
    """Try all sets of blickets that explain the results; a light is on if any blicket is on the detector."""
    tests = [(frozenset(line.split(", ")), light) for line, light in re.findall(r"^(.*) → (on|off)", question, re.M)]
    case = frozenset(question.partition("New test case:\n")[2].splitlines()[0].split(", "))
    objects = sorted({thing for things, _ in tests for thing in things} | case)
    lights = set()
    for flags in product((False, True), repeat=len(objects)):
        blickets = {thing for thing, flag in zip(objects, flags, strict=True) if flag}
        if all(bool(things & blickets) == (light == "on") for things, light in tests):
            lights.add("on" if case & blickets else "off")
    return lights.pop() if len(lights) == 1 else "undetermined"


def countdown(question: str) -> str:
    target = int(re.findall(r"(?:equals|Calculate|make) (\d+)", question)[0])
    numbers = re.findall(r"\d+", re.findall(r"numbers:? ([\d, ]*\d)", question)[0])
    for order in permutations(numbers):
        for signs in product("*+-/", repeat=len(numbers) - 1):  # left to right: quick, and usually sufficient
            value, text = Fraction(order[0]), order[0]
            for sign, n in zip(signs, order[1:], strict=True):
                value = {"*": value * int(n), "+": value + int(n), "-": value - int(n), "/": value / int(n)}[sign]
                text = f"({text}{sign}{n})"
            if value == target:
                return text
        if len(numbers) > 5:
            break
    return _reach([(Fraction(n), n) for n in numbers], target) or "none"


_MEANING = {"∧": min, "∨": max, "→": lambda a, b: max(1 - a, b), "↔": lambda a, b: int(a == b)}


def _holds(formula: str, values: dict[str, int]) -> bool:
    """Repeatedly evaluate the innermost brackets."""
    text = re.sub(r"\s", "", "".join(str(values.get(sign, sign)) for sign in formula))
    while text not in ("0", "1"):
        text = re.sub(r"¬([01])", lambda found: str(1 - int(found[1])), text)
        text = re.sub(
            r"\(([01])([∧∨→↔])([01])\)", lambda found: str(_MEANING[found[2]](int(found[1]), int(found[3]))), text
        )
        text = re.sub(r"\(([01])\)", r"\1", text)
    return text == "1"


def propositional_logic(question: str) -> str:
    """Return the shortest clause of one or two literals that the premises imply together, but no premise implies
    alone."""
    premises = re.findall(r"^\.?\d+\. (.*)$", question, re.MULTILINE)
    names = sorted({sign for premise in premises for sign in premise if sign.isalpha()})
    worlds = [dict(zip(names, values, strict=True)) for values in product((0, 1), repeat=len(names))]

    def implied(clause: str, by: list[str]) -> bool:
        return all(_holds(clause, world) for world in worlds if all(_holds(premise, world) for premise in by))

    literals = [sign + name for name in names for sign in ("", "¬")]
    clauses = [*literals, *(f"({one}∨{other})" for one, other in combinations(literals, 2) if one != f"¬{other}"[-2:])]
    return next(each for each in clauses if implied(each, premises) and not any(implied(each, [p]) for p in premises))
