"""The graders of games of moves: played by the question's rules, no illegal move, nothing for trying."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import grade, move_games

HANOI: dict[str, Any] = {
    "question": "",
    "answer": "Move disk 1 from Peg 1 to Peg 2\nMove disk 2 from Peg 1 to Peg 3\nMove disk 1 from Peg 2 to Peg 3",
    "metadata": {"num_disks": 2, "num_pegs": 3, "start_peg": 1, "target_peg": 3, "solution_length": 3},
}
# On the ring A1-B3-C1-A2-C3-B1-A3-C2 the knights follow each other round.
RING = dict.fromkeys(["A1", "B3", "C1", "A2", "C3", "B1", "A3", "C2"])
FOLLOW = ["w,A1,B3", "B,C3,B1", "w,B3,C1", "B,B1,A3", "w,C1,A2", "B,A3,C2", "w,A2,C3", "B,C2,A1"]
KNIGHTS: dict[str, Any] = {
    "question": "",
    "answer": "",
    "metadata": {"pieces": {**RING, "A1": "w", "C3": "B"}, "start_turn": "w", "is_possible": True},
}
SOKOBAN: dict[str, Any] = {
    "question": "",
    "answer": "RDRR",
    "metadata": {"gamestr": "+ + + + + + +  \n+ * @ X - - +  \n+ - - - @ X +  \n+ + + + + + +  \n\n"},
}


def _hanoi(answer: str, partial: bool = True) -> float:
    return grade("tower_of_hanoi", {}, HANOI, answer, partial_credit=partial)


def test_hanoi_in_the_stored_number_of_moves_is_right() -> None:
    """In any letter case, numbered, with bullets, in a list, separated by semicolons."""
    lines = HANOI["answer"].splitlines()
    for answer in (
        HANOI["answer"],
        HANOI["answer"].upper() + "\n",
        "\n\n".join(f"{number}. {line}." for number, line in enumerate(lines, start=1)),
        "\n".join(f"- {line}" for line in lines),
        str(lines),
        "; ".join(lines),
    ):
        assert _hanoi(answer) == 1.0, answer


def test_hanoi_in_more_moves_is_right() -> None:
    """The question asks for a sequence of moves, not for the shortest."""
    there_and_back = "Move disk 1 from Peg 1 to Peg 3\nMove disk 1 from Peg 3 to Peg 1\n"
    for times in (1, 2, 1000):
        assert _hanoi(there_and_back * times + HANOI["answer"], partial=False) == 1.0
        assert _hanoi(there_and_back * times) == 0.0


@given(st.integers(1, 6), st.integers(3, 5), st.randoms(use_true_random=False))
def test_hanoi_takes_any_legal_way(n_disks: int, n_pegs: int, rng: Any) -> None:
    """A walk at random, then the textbook's recursion from where it ends: right, but not with a move left out."""
    where = dict.fromkeys(range(1, n_disks + 1), 1)
    lines: list[str] = []

    def move(disk: int, peg: int) -> None:
        lines.append(f"Move disk {disk} from Peg {where[disk]} to Peg {peg}")
        where[disk] = peg

    def gather(disk: int, peg: int) -> None:
        if disk == 0:
            return
        if where[disk] == peg:
            return gather(disk - 1, peg)
        gather(disk - 1, next(p for p in range(1, n_pegs + 1) if p not in (peg, where[disk])))
        move(disk, peg)
        gather(disk - 1, peg)

    for _ in range(20):
        tops = {peg: min(disk for disk in where if where[disk] == peg) for peg in set(where.values())}
        choices = [
            (disk, peg) for disk in tops.values() for peg in range(1, n_pegs + 1) if tops.get(peg, n_disks + 1) > disk
        ]
        move(*rng.choice(choices))
    gather(n_disks, 2)
    metadata = {"num_disks": n_disks, "num_pegs": n_pegs, "start_peg": 1, "target_peg": 2, "solution_length": 1}
    entry = {"question": "", "answer": "", "metadata": metadata}
    assert grade("tower_of_hanoi", {}, entry, "\n".join(lines)) == 1.0
    assert grade("tower_of_hanoi", {}, entry, "\n".join(lines[:-1])) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " ",
        "solved",
        "Move disk 1 from Peg 1 to Peg 2",  # the library pays 0.05
        "Move disk 1 from Peg 1 to Peg 3\nMove disk 2 from Peg 1 to Peg 3",  # on a smaller one
        "Move disk 2 from Peg 1 to Peg 3\nMove disk 1 from Peg 1 to Peg 3",  # from below another
        "Move disk 1 from Peg 1 to Peg 4",
        "Move disk 0 from Peg 3 to Peg 1",
        "Move disk 1 from Peg 1 to Peg 99999999999",
        "Move disk 1 from Peg 1 to Peg 2 and disk 2 to Peg 3",
        HANOI["answer"] + "\nand so on",
        HANOI["answer"] + "\nMove disk 1 from Peg 3 to Peg 1",
    ],
)
def test_hanoi_wrong(answer: str) -> None:
    """Nothing is paid for legal moves that do not solve it, illegal ones, or other text."""
    assert _hanoi(answer) == 0.0


def _knights(answer: str, is_possible: bool = True) -> float:
    pieces = KNIGHTS["metadata"]["pieces"] if is_possible else {"A1": "w", "B3": "B", "C1": None}
    entry = {"question": "", "answer": "No", "metadata": {"pieces": pieces, "start_turn": "w"}}
    return grade("knight_swap", {}, entry, answer, partial_credit=True)


def test_knights_that_change_places_by_legal_moves_are_right() -> None:
    """In JSON, as a Python list, bare, in any letter case, and also by a detour."""
    for answer in (
        str(FOLLOW).replace("'", '"'),
        str(FOLLOW),
        ", ".join(FOLLOW),
        "\n".join(FOLLOW),
        "; ".join(FOLLOW).lower(),
        "[" + ", ".join(f'"{move.replace(",", ", ")}"' for move in FOLLOW) + "]",
    ):
        assert _knights(answer) == 1.0, answer
    detour = ["w,A1,B3", "B,C3,B1", "w,B3,A1", "B,B1,C3", *FOLLOW]
    assert _knights(str(detour)) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "[]",
        "No",
        "Yes",
        str(FOLLOW[:-1]),
        str(FOLLOW[::-1]),
        str(FOLLOW[2:]),
        str(FOLLOW).replace("w,A1,B3", "w,A1,D4"),
        str(FOLLOW).replace("w,A1,B3", "w,A1,A2"),
        str(FOLLOW).replace("w,A1,B3", "B,A1,B3"),
        str([move for move in FOLLOW if move[0] == "w"]),  # not in turns
        str(["w,A1,C3", "B,C3,A1"]),
        str([*FOLLOW, "w,C3,B1"]),
        "moves: " + str(FOLLOW),
        str(FOLLOW).replace("', 'B", "'' ,'B", 1),
    ],
)
def test_knights_wrong(answer: str) -> None:
    """Unfinished, out of turn, not a knight's move, onto a taken or missing square, other text."""
    assert _knights(answer) == 0.0


def test_no_is_right_only_where_it_cannot_be_done() -> None:
    """In any letter case and quotes; nothing longer. "No" is stored for both puzzles."""
    for answer in ("No", "no.", '"No"', "**NO**"):
        assert _knights(answer, is_possible=False) == 1.0, answer
        assert _knights(answer) == 0.0, answer
    for answer in ("", "No way", "Not possible", "no no", "False"):
        assert _knights(answer, is_possible=False) == 0.0, answer


def _sokoban(answer: str) -> float:
    return grade("sokoban", {}, SOKOBAN, answer, partial_credit=True)


@pytest.mark.parametrize(
    "answer", ["RDRR", "r d r r", "['R','D','R','R']", "R, D,\nR, R", "UULRLURLDRRR", "RDRRLLLURLDRRU"]
)
def test_sokoban_solved(answer: str) -> None:
    """In any letter case and separation; steps into walls do nothing, and more steps do no harm."""
    assert _sokoban(answer) == 1.0


@pytest.mark.parametrize(
    "answer", ["", " ", "R", "RDR", "RDRRX", "Right, down", "RRDLLDRRR", "The moves: RDRR", "RDRR!", "ЯDRR", "R999DRR"]
)
def test_sokoban_wrong(answer: str) -> None:
    """Boxes left over, pushed too far, or other text, which the library ignores."""
    assert _sokoban(answer) == 0.0


def test_sokoban_boxes_do_not_push_boxes_or_leave_the_board() -> None:
    """A box behind a box, a wall or the edge stays, and so does the player."""
    entry = {"metadata": {"gamestr": "+ + + + + +\n+ * @ @ X +\n+ - - X - +\n+ + + + + +"}}
    assert move_games.sokoban("RR", entry, {}) == 0.0
    assert move_games.sokoban("DRRURDLULDLUR", entry, {}) == 0.0
    open_edge = {"metadata": {"gamestr": "* @ -\n- - X\n"}}
    assert move_games.sokoban("RRRRR", open_edge, {}) == 0.0
    on_goals = {"metadata": {"gamestr": "+ + + + +\n+ % @ X +\n+ + + + +"}}
    assert move_games.sokoban("R", on_goals, {}) == 1.0


GAMES = {"tower_of_hanoi": HANOI, "knight_swap": KNIGHTS, "sokoban": SOKOBAN}


@given(
    st.sampled_from(sorted(GAMES)),
    st.text(max_size=50) | st.text(alphabet="UDLRwB,ABC123 []'\"\nMovedisk 1 from Peg to", max_size=200),
)
def test_no_text_raises(task: str, text: str) -> None:
    """Whatever stands in the answer."""
    assert 0.0 <= grade(task, {}, GAMES[task], text, partial_credit=True) <= 1.0


@pytest.mark.parametrize("task", sorted(GAMES))
def test_hostile_answers_cost_little(task: str) -> None:
    """At 10,000 characters, each in far less than the limit on a quiet machine."""
    back_and_forth = "Move disk 1 from Peg 1 to Peg 2\nMove disk 1 from Peg 2 to Peg 1\n" * 156
    for answer in (
        "LR" * 5_000,
        "w,A1,B3 " * 1_250,
        "w" + " " * 9_998 + "w",
        "w,A1,B3" + " " * 9_990,
        "w, " * 3_333,
        "'w,A1,B3', " * 900 + "!",
        "Move" + " " * 9_996,
        "Move disk " * 1_000,
        "1. " * 3_333,
        back_and_forth,
        "R999999999" * 1_000,
        "\0" * 10_000,
    ):
        start = time.perf_counter()
        assert grade(task, {}, GAMES[task], answer, partial_credit=True) == 0.0
        assert time.perf_counter() - start < 0.1, answer[:20]
