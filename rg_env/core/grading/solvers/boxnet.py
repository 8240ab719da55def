"""Boxnet: its grader, and a simple solver, for the library stores no solution.

A plan is a list of steps. In a step each agent may do one thing with a box that is in its square when the step begins:
move it to a square next to it, or match it with a target of its colour in the same square. Matching takes both away.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from rg_env.core.grading.graders.common import Config, Entry
from rg_env.core.grading.parsing import forms

_AGENT = re.compile(r"agent\[\s*(\d{1,3}\.5)\s*,\s*(\d{1,3}\.5)\s*\]", re.IGNORECASE)
_ACTION = re.compile(r"move\(([^(),]+),([^()]+)\)")
_SQUARE = re.compile(r"square\[\s*(\d{1,3}\.5)\s*,\s*(\d{1,3}\.5)\s*\]")

_Squares = dict[str, list[str]]
"""What lies in each square, which is named by its centre: `0.5_1.5`."""


def boxnet(answer: str, entry: Entry, config: Config) -> float:
    """All boxes are matched; the share of matched boxes for a plan that leaves some. It need not be the shortest.

    A plan with an impossible action is wrong. The library skips those.
    """
    steps = forms.literal(answer) if answer.lstrip().startswith("[") else None
    squares = {name: list(items) for name, items in entry["metadata"]["initial_state"].items()}
    n_boxes = _n_boxes(squares)
    if not isinstance(steps, list) or not all(isinstance(step, dict) and _do(step, squares) for step in steps):
        return 0.0
    return (n_boxes - _n_boxes(squares)) / n_boxes


def _do(step: dict[Any, Any], squares: _Squares) -> bool:
    """Do all actions of a step at once; False if one is impossible."""
    acted = set()
    arrivals = []
    for agent, action in step.items():
        if not isinstance(agent, str) or not isinstance(action, str):
            return False
        where, what = _AGENT.fullmatch(agent.strip()), _ACTION.fullmatch(action.strip())
        if where is None or what is None:
            return False
        here, box, destination = "_".join(where.groups()), what[1].strip(), what[2].strip()
        items = squares.get(here)
        if here in acted or items is None or not box.startswith("box_") or box not in items:
            return False
        acted.add(here)
        items.remove(box)
        if square := _SQUARE.fullmatch(destination):
            there = "_".join(square.groups())
            if there not in squares or _distance(here, there) != 1:
                return False
            arrivals.append((there, box))
        elif destination == _target_of(box) and destination in items:
            items.remove(destination)
        else:
            return False
    for there, box in arrivals:
        squares[there].append(box)
    return True


def solve(entry: Mapping[str, Any]) -> str:
    """A plan that matches all boxes, one action a step: each box in turn walks to the nearest target left for it."""
    squares: _Squares = entry["metadata"]["initial_state"]
    targets = [(item, name) for name, items in squares.items() for item in items if item.startswith("target_")]
    plan = []
    for name, items in squares.items():
        for box in items:
            if not box.startswith("box_"):
                continue
            goal = min(
                (pair for pair in targets if pair[0] == _target_of(box)), key=lambda pair: _distance(name, pair[1])
            )
            targets.remove(goal)
            path = _path(name, goal[1])
            destinations = [*(f"square[{square.replace('_', ', ')}]" for square in path[1:]), goal[0]]
            for here, destination in zip(path, destinations, strict=True):
                plan.append({f"Agent[{here.replace('_', ', ')}]": f"move({box}, {destination})"})
    return json.dumps(plan)


def _path(start: str, end: str) -> list[str]:
    """The squares from `start` to `end`, both included: first along one axis, then along the other."""
    at, goal = [float(part) for part in start.split("_")], [float(part) for part in end.split("_")]
    path = [start]
    for axis in (0, 1):
        while at[axis] != goal[axis]:
            at[axis] += 1 if goal[axis] > at[axis] else -1
            path.append(f"{at[0]}_{at[1]}")
    return path


def _distance(one: str, other: str) -> float:
    return sum(abs(float(a) - float(b)) for a, b in zip(one.split("_"), other.split("_"), strict=True))


def _target_of(box: str) -> str:
    return "target_" + box.removeprefix("box_")


def _n_boxes(squares: _Squares) -> int:
    return sum(item.startswith("box_") for items in squares.values() for item in items)
