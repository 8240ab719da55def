"""Graders of the games tasks whose answer is a list of moves: played on a board of our own, by the question's rules.

A list with an illegal move is wrong, except in sokoban, where walking into a wall does nothing. `rush_hour` and
`boxnet` have modules of their own, for the library stores no solution of theirs.
"""

import re
from functools import lru_cache

from rg_env.core.graders import forms
from rg_env.core.graders.boxnet import boxnet
from rg_env.core.graders.rush_hour import rush_hour
from rg_env.core.graders.types import Config, Entry, Grader

_DISK_MOVE = re.compile(r"move\s+disk\s+(\d{1,4})\s+from\s+peg\s+(\d{1,4})\s+to\s+peg\s+(\d{1,4})\.?", re.IGNORECASE)
_NUMBERING = re.compile(r"(?:\d{1,6}[.):]|[-*])\s+")
_CHARS_PER_LINE = 8
_MORE_LINES = 200
"""A move takes 31 characters; with more lines than this most would be blank."""
_KNIGHT_MOVE = re.compile(r"\b([wb])\s*,\s*([a-z]\d{1,2})\s*,\s*([a-z]\d{1,2})\b", re.IGNORECASE)
_KNIGHT_MOVES = re.compile(
    r"[\[(]?\s*(['\"]?)M\1(?:(?:\s*[,;]\s*|\s+)\1M\1)*\s*[\])]?".replace(
        "M", r"[wb]\s*,\s*[a-z]\d{1,2}\s*,\s*[a-z]\d{1,2}"
    ),
    re.IGNORECASE,
)
"""A list of moves as JSON or bare, all in the same quotes."""
_SEPARATORS = str.maketrans(dict.fromkeys(" \t\r\n,;'\"[]", ""))


def tower_of_hanoi(answer: str, entry: Entry, config: Config) -> float:
    """All disks on the target peg by legal moves, of any number: the question does not ask for the fewest.

    Each move is played once, in constant time. `scoring.MAX_ANSWER_CHARS`, or twice the length of the stored solution,
    bounds how many there are.
    """
    metadata = entry["metadata"]
    pegs: dict[int, list[int]] = {peg: [] for peg in range(1, metadata["num_pegs"] + 1)}
    pegs[metadata["start_peg"]] = list(range(metadata["num_disks"], 0, -1))
    if sum(map(answer.count, "\n,;")) >= len(answer) // _CHARS_PER_LINE + _MORE_LINES:
        return 0.0
    for line in re.split(r"[\n,;]", forms.plain_digits(answer)):
        move = _disk_move(line)
        if not move:
            if move is None:
                return 0.0
            continue
        disk, source, target = move
        if source not in pegs or target not in pegs or pegs[source][-1:] != [disk]:
            return 0.0
        pegs[source].pop()
        if pegs[target] and pegs[target][-1] < disk:
            return 0.0
        pegs[target].append(disk)
    return float(len(pegs[metadata["target_peg"]]) == metadata["num_disks"])


@lru_cache(maxsize=4096)
def _disk_move(line: str) -> tuple[int, ...] | None:
    """Disk, source and target peg; empty for a blank line, None for anything else. The same few lines come again."""
    line = line.strip(" \t\r[]\"'")
    if numbering := _NUMBERING.match(line):
        line = line[numbering.end() :]
    if not line:
        return ()
    move = _DISK_MOVE.fullmatch(line)
    return None if move is None else tuple(map(int, move.groups()))


def knight_swap(answer: str, entry: Entry, config: Config) -> float:
    """Legal moves in turns after which the colours have changed places, of any number; "No" where there are none.

    Legal is what the question says: to an empty square that a knight reaches. The library secretly takes a move off
    the board of a puzzle that it wants impossible; `graders.corrections` solves those that are not.
    """
    metadata = entry["metadata"]
    if answer.strip(" \t\r\n\"'[].").lower() == "no":
        return float(entry["answer"] == "No")
    answer = forms.plain_digits(answer)
    if not _KNIGHT_MOVES.fullmatch(answer.strip()):
        return 0.0
    board: dict[str, str | None] = dict(metadata["pieces"])
    turn = metadata["start_turn"]
    for colour, start, end in _KNIGHT_MOVE.findall(answer):
        start, end = start.upper(), end.upper()
        if colour.lower() != turn.lower() or board.get(start) != turn:
            return 0.0
        if end not in board or board[end] is not None or not _is_knight_move(start, end):
            return 0.0
        board[start], board[end] = None, turn
        turn = "B" if turn == "w" else "w"
    swapped = {"w": "B", "B": "w", None: None}
    return float(all(board[square] == swapped[piece] for square, piece in metadata["pieces"].items()))


def _is_knight_move(start: str, end: str) -> bool:
    return {abs(ord(start[0]) - ord(end[0])), abs(int(start[1:]) - int(end[1:]))} == {1, 2}


def sokoban(answer: str, entry: Entry, config: Config) -> float:
    """The letters U, D, L and R push all boxes onto goals. Steps into what cannot be pushed do nothing."""
    moves = answer.translate(_SEPARATORS).upper()
    if not moves or set(moves) - set("UDLR"):
        return 0.0
    rows = entry["metadata"]["gamestr"].replace(" ", "").strip().splitlines()
    stride = max(map(len, rows)) + 1  # one column of nothing, so that no step leads from one row into the next
    cells = {y * stride + x: cell for y, row in enumerate(rows) for x, cell in enumerate(row)}
    floor = {at for at, cell in cells.items() if cell != "+"}
    goals = {at for at, cell in cells.items() if cell in "X$%"}
    boxes = {at for at, cell in cells.items() if cell in "@$"}
    player = next(at for at, cell in cells.items() if cell in "*%")
    steps = {"U": -stride, "D": stride, "L": -1, "R": 1}
    for move in moves:
        step = steps[move]
        ahead = player + step
        if ahead in boxes:
            beyond = ahead + step
            if beyond in boxes or beyond not in floor:
                continue
            boxes.remove(ahead)
            boxes.add(beyond)
        elif ahead not in floor:
            continue
        player = ahead
    return float(boxes <= goals)


GRADERS: dict[str, Grader] = {
    "boxnet": boxnet,
    "knight_swap": knight_swap,
    "rush_hour": rush_hour,
    "sokoban": sokoban,
    "tower_of_hanoi": tower_of_hanoi,
}
