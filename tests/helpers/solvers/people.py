"""Solvers of stories about people."""

import re
from itertools import product

_MEN = (
    "James John Robert Michael William David Richard Joseph Thomas Charles Peter Daniel Matthew Christopher Andrew "
    "George Edward Benjamin Henry Samuel Alexander Oliver Jack Harry Jacob Noah Ethan Lucas Mason Logan Sebastian "
    "Theodore Owen Liam Aiden Kai Jayden Zion Phoenix Atlas Axel Ryder Finn"
)


def family_relationships(question: str) -> str:
    spouse: dict[str, str] = {}
    parents: dict[str, set[str]] = {}
    for one, other, children in re.findall(
        r"(\w+) is married to (\w+)\.(?: They have (?:a child|children) called ([\w, ]+)\.)?", question
    ):
        spouse |= {one: other, other: one}
        for child in re.split(r", | and ", children) if children else []:
            parents[child] = {one, other}
    pattern = r"(?:What is (\w+) to (\w+)\?|How is (\w+) related to (\w+)\?|What relation is (\w+) to (\w+)\?)"
    a, b = [name for name in re.findall(pattern, question)[0] if name]
    grandparents = {name: {g for p in up for g in parents.get(p, ())} for name, up in parents.items()}
    up_a, up_b = parents.get(a, set()), parents.get(b, set())
    if a in up_b:
        words = ("father", "mother")
    elif b in up_a:
        words = ("son", "daughter")
    elif spouse.get(a) == b:
        words = ("husband", "wife")
    elif up_a and up_a == up_b:
        words = ("brother", "sister")
    elif a in grandparents.get(b, ()):
        words = ("grandfather", "grandmother")
    elif up_a & grandparents.get(b, set()):
        words = ("uncle", "aunt")
    elif up_b & grandparents.get(a, set()):
        words = ("nephew", "niece")
    elif b in parents.get(spouse.get(a, ""), ()):
        words = ("son-in-law", "daughter-in-law")
    else:
        raise ValueError(question)
    return words[a not in _MEN.split()]


def knights_knaves(question: str) -> str:
    role_a, role_b = re.findall(r"inhabited only by (\w+)s and (\w+?)s\.", question)[0]
    names = re.split(r", (?:and )?", re.findall(r"inhabitants: (.*?)\. ", question)[0])
    statements = []
    body = question.partition("inhabitants: ")[2].partition(". ")[2].rpartition(" So who is")[0]
    claim = rf"(?:{'|'.join(names)}) is an? \w+"
    content = rf"[(]*(?:it is not the case that|if|{claim})(?:(?!\. |\" ).)*?"
    patterns = [
        rf"(?P<a>\w+) (?:said that|told you that|expressed that) (?P<x>{content})\.(?= |$)",
        rf"\"(?P<y>{content}),?\"(?:,| -)? (?P<b>\w+)(?: declared| mentioned| claimed)?\.",
        rf"\b(?P<c>{'|'.join(names)})[^\".]*\"(?P<z>{content})\.?\"\.?(?= |$)",
    ]
    for found in re.finditer("|".join(patterns), body):
        part = found.groupdict()
        speaker = part["a"] or part["b"] or part["c"]
        statements.append((speaker, part["x"] or part["y"] or part["z"]))

    def truth(text: str, world: dict[str, bool]) -> bool:
        text = text.strip(" ")
        flat, depth = "", 0
        for sign in text:
            depth += (sign == "(") - (sign == ")")
            flat += "#" if depth or sign == ")" else sign
        if set(flat) == {"#"}:
            return truth(text[1:-1], world)
        for words, rule in (
            (" if and only if ", lambda a, b: a == b),
            (" then ", lambda a, b: not a or b),
            (" and ", lambda a, b: a and b),
            (" or ", lambda a, b: a or b),
        ):
            if flat.startswith("it is not the case that "):
                return not truth(text.removeprefix("it is not the case that "), world)
            if words in flat and (words != " then " or flat.startswith("if ")):
                at = flat.index(words)
                return rule(truth(text[:at].removeprefix("if ") if words == " then " else text[:at], world),
                            truth(text[at + len(words) :], world))  # fmt: skip
        name, role = re.fullmatch(r"(\w+) is an? (\w+)", text).groups()
        return world[name] == (role == role_a)

    assert len(statements) == len(names), question
    worlds = [dict(zip(names, bits, strict=True)) for bits in product((True, False), repeat=len(names))]
    (world,) = [w for w in worlds if all(truth(text, w) == w[speaker] for speaker, text in statements)]
    return ", and ".join(f"{name} is a {role_a if world[name] else role_b}" for name in names)
