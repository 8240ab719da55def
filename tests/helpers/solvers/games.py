"""Solvers of games that are played move by move, by breadth-first search, and of card games."""

import json
import re
from collections.abc import Iterable
from itertools import product
from string import ascii_uppercase

from reasoning_gym.data import read_data_file

from solvers.search import assign, search


def quantum_lock(question: str) -> str:
    """Search for presses; each press toggles the light, and its operation takes effect only in the button's light."""
    start, light = re.findall(r"Start: (\d+) \((\w+)\)", question)[0]
    target = int(re.findall(r"Target: (\d+)", question)[0])
    buttons = re.findall(r"^([A-Z]): (\w+) (\d+) \(when (\w+)\)", question, re.MULTILINE)
    toggled = {"red": "green", "green": "red"}

    def moves(state):
        value, color = state
        for name, kind, operand, when in buttons:
            n = int(operand)
            new = {"Add": value + n, "Subtract": value - n, "Multiply": value * n}[kind]
            yield name, (new if when in ("any", color) else value, toggled[color])

    return " → ".join(search((int(start), light), moves, lambda state: state[0] == target))


def jugs(question: str) -> str:
    sizes = {name: int(n) for name, n in re.findall(r"([A-Z]):(\d+)", question)}
    target = int(re.findall(r"target is: (\d+)", question)[0])
    names = list(sizes)

    def moves(state):
        for i, name in enumerate(names):
            yield f"fill {name}", (*state[:i], sizes[name], *state[i + 1 :])
            yield f"empty {name}", (*state[:i], 0, *state[i + 1 :])
            for j, other in enumerate(names):
                if i != j:
                    poured, new = min(state[i], sizes[other] - state[j]), list(state)
                    new[i], new[j] = state[i] - poured, state[j] + poured
                    yield f"pour {name}->{other}", tuple(new)

    return json.dumps(search((0,) * len(names), moves, lambda state: target in state))


def knight_swap(question: str) -> str:
    lines = re.findall(r"^(\d+) \|(.*)\|$", question, re.MULTILINE)
    letters = re.findall(r"```\n([A-Z ]+)\n", question)[0].split()
    squares = {
        letter + n: cell.strip()
        for n, row in lines
        for letter, cell in zip(letters, row.split("|"), strict=True)
        if cell.strip()
    }
    start = tuple(frozenset(at for at, piece in squares.items() if piece == color) for color in "wB")
    first = re.findall(r"3\. (w|B) moves first", question)[0]

    def moves(state):
        white, black, turn = state
        own = white if turn == "w" else black
        for at in own:
            for to in squares:
                if {abs(ord(at[0]) - ord(to[0])), abs(int(at[1:]) - int(to[1:]))} == {1, 2} and to not in white | black:
                    new = own - {at} | {to}
                    yield f"{turn},{at},{to}", (new, black, "B") if turn == "w" else (white, new, "w")

    found = search((*start, first), moves, lambda state: (state[1], state[0]) == start)
    return "No" if found is None else json.dumps(found)


def tower_of_hanoi(question: str) -> str:
    """Recurse with three pegs, even if there are more pegs."""
    n, _, start, target = map(int, re.findall(r"\d+", question)[:4])
    spare = next(peg for peg in (1, 2, 3) if peg not in (start, target))

    def moves(disk: int, source: int, to: int, other: int) -> list[str]:
        if disk == 0:
            return []
        move = f"Move disk {disk} from Peg {source} to Peg {to}"
        return [*moves(disk - 1, source, other, to), move, *moves(disk - 1, other, to, source)]

    return "\n".join(moves(n, start, target, spare))


def path_star(question: str) -> str:
    text = question.strip().splitlines()[-1]
    edges, (start, goal) = re.findall(r"(\d+) (\d+)(?=\||/)", text), re.findall(r"/(\d+) (\d+)", text)[0]
    neighbors: dict[str, list[str]] = {}
    for one, other in edges:
        neighbors.setdefault(one, []).append(other)
        neighbors.setdefault(other, []).append(one)
    found = search(start, lambda at: ((to, to) for to in neighbors[at]), lambda at: at == goal)
    return " ".join([start, *(found or [])])


def rush_hour(question: str) -> str:
    rows = question.partition("Board:\n")[2].split()
    cells = {(r, c): sign for r, row in enumerate(rows) for c, sign in enumerate(row)}
    walls = {at for at, sign in cells.items() if sign == "x"}
    cars = {}
    for sign in sorted(set(cells.values()) - {"x", "."}):
        places = sorted(at for at, other in cells.items() if other == sign)
        cars[sign] = (places[0][0] != places[1][0], len(places), places[0])
    names = list(cars)

    def body(name: str, at: int) -> list[tuple[int, int]]:
        down, length, (row, column) = cars[name]
        return [(at + i, column) if down else (row, at + i) for i in range(length)]

    def moves(state):
        taken = {place for name, at in zip(names, state, strict=True) for place in body(name, at)} | walls
        for i, name in enumerate(names):
            own = set(body(name, state[i]))
            for step in (1, -1):
                at = state[i] + step
                while all(place in cells and (place not in taken or place in own) for place in body(name, at)):
                    yield f"{name}{at - state[i]:+d}", (*state[:i], at, *state[i + 1 :])
                    at += step

    red, length = names.index("A"), cars["A"][1]
    start = tuple(place[0] if down else place[1] for down, _, place in cars.values())
    return " ".join(search(start, moves, lambda state: state[red] + length == len(rows[0])))


def mahjong_puzzle(question: str) -> str:
    hand, result = list(re.findall(r"initial cards ([A-Z]+)", question)[0]), ""
    for new, old in re.findall(r"Add an? ([A-Z]) card and remove an? ([A-Z]) card", question):
        runs = ["".join(map(chr, range(ord(new) - shift, ord(new) - shift + 3))) for shift in (0, 1, 2)]
        chi = any(all(card in hand for card in run if card != new) for run in runs)
        result = "Peng" if hand.count(new) >= 2 else "Chi" if chi else "Pass"
        hand = [*hand, new]
        hand.remove(old)
    return result


def color_cube_rotation(question: str) -> str:
    cube = {side: color for color, side in re.findall(r"- an? (\w+) (\w+) side", question)}
    rings = [("top", "front", "bottom", "back"), ("top", "left", "bottom", "right")]
    text = re.sub(r"\s+", " ", question.partition("side\n\n")[2])
    turns = re.findall(
        r"(?:before at the|bring the|make the|place its|Next, the) (top|bottom|front|back|left|right)", text
    )
    for side in turns:
        ring = next((ring for ring in rings if side in ring and side != "top"), rings[0])
        shift = ring.index(side)
        old = dict(cube)
        for at, name in enumerate(ring):
            cube[name] = old[ring[(at + shift) % 4]]
    return cube[re.findall(r"color of the (\w+) side", question)[0]]


def graph_color(question: str) -> str:
    vertices = re.findall(r"\d+", re.findall(r"Vertices: \[(.*?)\]", question)[0])
    edges = re.findall(r"\((\d+), (\d+)\)", question)
    colors = [int(n) for n in re.findall(r"\d+", re.findall(r"Possible colors: \[(.*?)\]", question)[0])]

    def choices(done: dict[str, int], at: str) -> list[int]:
        near = {done.get(b if a == at else a) for a, b in edges if at in (a, b)}
        return [color for color in colors if color not in near]

    return json.dumps(assign(vertices, choices))


def word_ladder(question: str) -> str:
    start, end = re.findall(r"'([A-Z]+)'", question)[:2]
    words = set(re.findall(rf"\b[A-Z]{{{len(start)}}}\b", read_data_file("words.csv")))

    def moves(text: str) -> Iterable[tuple[str, str]]:
        for place, letter in product(range(len(text)), ascii_uppercase):
            other = text[:place] + letter + text[place + 1 :]
            if other != text and other in words:
                yield other, other

    return ",".join([start, *(search(start, moves, lambda word: word == end) or [])])


def boxnet(question: str) -> str:
    """Move each box in turn straight to a free target of its color."""
    boxes, targets = [], []
    for x, y, seen in re.findall(r"I am in square\[([\d.]+), ([\d.]+)\], I can observe \[(.*?)\]", question):
        for kind, color in re.findall(r"'(box|target)_([^']+)'", seen):
            (boxes if kind == "box" else targets).append((color, float(x), float(y)))
    plan = []
    for color, x, y in boxes:
        _, to_x, to_y = target = next(each for each in targets if each[0] == color)
        targets.remove(target)
        while (x, y) != (to_x, to_y):
            after = (x + (1 if to_x > x else -1), y) if x != to_x else (x, y + (1 if to_y > y else -1))
            plan.append({f"Agent[{x}, {y}]": f"move(box_{color}, square[{after[0]}, {after[1]}])"})
            x, y = after
        plan.append({f"Agent[{x}, {y}]": f"move(box_{color}, target_{color})"})
    return json.dumps(plan)
