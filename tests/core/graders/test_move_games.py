"""The graders and solvers of games with moves: answers are played by the question's rules, without illegal moves."""

import json
import time
from typing import Any

from grader_cases import Row, entry, row, table
from hypothesis import given
from hypothesis import strategies as st

from rg_env.core.grading.graders import gold_answer, grade
from rg_env.core.grading.graders.move_games import is_shortest_lock


def hanoi(disks: int, pegs: int, target: int, gold: str = "") -> dict[str, Any]:
    return entry(gold, num_disks=disks, num_pegs=pegs, start_peg=1, target_peg=target)


HANOI = hanoi(
    *(2, 3, 3), "Move disk 1 from Peg 1 to Peg 2\nMove disk 2 from Peg 1 to Peg 3\nMove disk 1 from Peg 2 to Peg 3"
)
LINES = HANOI["answer"].splitlines()
THERE_AND_BACK = "Move disk 1 from Peg 1 to Peg 3\nMove disk 1 from Peg 3 to Peg 1\n"
# On the ring A1-B3-C1-A2-C3-B1-A3-C2 the knights follow each other round.
RING = dict.fromkeys(["A1", "B3", "C1", "A2", "C3", "B1", "A3", "C2"])
FOLLOW = ["w,A1,B3", "B,C3,B1", "w,B3,C1", "B,B1,A3", "w,C1,A2", "B,A3,C2", "w,A2,C3", "B,C2,A1"]
KNIGHTS = entry("No", pieces={**RING, "A1": "w", "C3": "B"}, start_turn="w")
STUCK = entry("No", pieces={"A1": "w", "B3": "B", "C1": None}, start_turn="w")


def sokoban(board: str) -> dict[str, Any]:
    return entry("", gamestr=board)


# The question shows C, H, I as B, C, D: letters there leave none out.
TRAFFIC = entry(None, board_config="oooooo" + "ooooCo" + "AAooCo" + "oooooo" + "oxHHHo" + "IIoooo")
HARD_TRAFFIC = entry(None, board_config="IBBxoo" + "IooLDD" + "JAALoo" + "JoKEEM" + "FFKooM" + "GGHHHM")


def boxes(**squares: list[str]) -> dict[str, Any]:
    """Items of squares named like s02."""
    empty: dict[str, list[str]] = {f"{row}.5_{column}.5": [] for row in range(2) for column in range(3)}
    named = {f"{name[1]}.5_{name[2]}.5": items for name, items in squares.items()}
    return entry(None, initial_state={**empty, **named})


BOXES = boxes(s00=["box_red", "box_blue"], s02=["target_red"], s10=["target_blue"])
RED = [
    {"Agent[0.5, 0.5]": "move(box_red, square[0.5, 1.5])"},
    {"Agent[0.5, 1.5]": "move(box_red, square[0.5, 2.5])"},
    {"Agent[0.5, 2.5]": "move(box_red, target_red)"},
]
BLUE = [{"Agent[0.5, 0.5]": "move(box_blue, square[1.5, 0.5])"}, {"Agent[1.5, 0.5]": "move(box_blue, target_blue)"}]
BOTH = [RED[0], {**RED[1], **BLUE[0]}, {**RED[2], **BLUE[1]}]
MANY_BOXES = boxes(
    s00=["box_red", "box_red", "box_light blue"],
    s12=["target_red", "box_red", "target_red"],
    s01=["target_red"],
    s10=["target_light blue"],
)


@table(
    row(
        "tower_of_hanoi",
        HANOI,
        [
            *(HANOI["answer"], HANOI["answer"].upper() + "\n", str(LINES), "; ".join(LINES)),
            "\n\n".join(f"{number}. {line}." for number, line in enumerate(LINES, start=1)),
            "\n".join(f"- {line}" for line in LINES),
            *(THERE_AND_BACK * times + HANOI["answer"] for times in (1, 2, 100)),  # the shortest is not asked for
        ],
        [
            *("solved", LINES[0], THERE_AND_BACK, HANOI["answer"] + "\nand so on", "Move disk 1 from Peg 1 to Peg 4"),
            "Move disk 1 from Peg 1 to Peg 3\nMove disk 2 from Peg 1 to Peg 3",  # on a smaller one
            "Move disk 2 from Peg 1 to Peg 3\nMove disk 1 from Peg 1 to Peg 3",  # from below another
            *("Move disk 0 from Peg 3 to Peg 1", "Move disk 1 from Peg 1 to Peg 99999999999"),
            *("Move disk 1 from Peg 1 to Peg 2 and disk 2 to Peg 3", HANOI["answer"] + f"\n{THERE_AND_BACK[32:-1]}"),
        ],
    ),
    row(
        "knight_swap",
        KNIGHTS,
        [
            *(json.dumps(FOLLOW), str(FOLLOW), ", ".join(FOLLOW), "\n".join(FOLLOW), "; ".join(FOLLOW).lower()),
            "[" + ", ".join(f'"{move.replace(",", ", ")}"' for move in FOLLOW) + "]",
            str(["w,A1,B3", "B,C3,B1", "w,B3,A1", "B,B1,C3", *FOLLOW]),  # a detour
        ],
        [
            *("[]", "No", "Yes", '"no."', "moves: " + str(FOLLOW)),
            *map(str, (FOLLOW[:-1], FOLLOW[::-1], FOLLOW[2:])),
            *(str(FOLLOW).replace("w,A1,B3", move) for move in ("w,A1,D4", "w,A1,A2", "B,A1,B3")),
            str([move for move in FOLLOW if move[0] == "w"]),  # not in turns
            *(str(["w,A1,C3", "B,C3,A1"]), str([*FOLLOW, "w,C3,B1"]), str(FOLLOW).replace("', 'B", "'' ,'B", 1)),
        ],
    ),
    row("knight_swap", STUCK, 'No | no. | "No" | **NO**', "No way | Not possible | no no | False"),
    row(
        "sokoban",
        sokoban("+ + + + + + +  \n+ * @ X - - +  \n+ - - - @ X +  \n+ + + + + + +  \n\n"),
        ["RDRR", "r d r r", "['R','D','R','R']", "R, D,\nR, R", "UULRLURLDRRR", "RDRRLLLURLDRRU"],
        "R | RDR | RDRRX | Right, down | RRDLLDRRR | The moves: RDRR | RDRR! | ЯDRR | R999DRR",
    ),
    # a box behind a box, a wall or the edge stays, and so does the player
    row("sokoban", sokoban("+ + + + + +\n+ * @ @ X +\n+ - - X - +\n+ + + + + +"), wrong="RR | DRRURDLULDLUR"),
    row("sokoban", sokoban("* @ -\n- - X\n"), wrong="RRRRR"),
    row("sokoban", sokoban("+ + + + +\n+ % @ X +\n+ + + + +"), "R"),
    row(
        "rush_hour",
        TRAFFIC,
        [
            *("B-1 A+4", "b-1, a+4", "['B-1', 'A+4']", "B−1\nA+4", "B-1 AA+4", "B+0 B-1 A+2 A+2", "B+1 B-2 A+4"),
            *("B-1 A+5", "B-1 A+6", "D+4 B-1 A+4"),  # the last move may drive the car out of the board
        ],
        [
            *("solved", "A+4", "A+999999999999", "B-1 A+7", "B-1 A+5 D+1", "B-1 A+3", "B-1 A+4 A-1", "A+0", "B-1 A4"),
            *("B-2 A+4", "B+2 A+4", "C-1 B-1 A+4"),  # out of the board, through C, into the wall
            *("H-1 B-1 A+4", "E-1 B-1 A+4", "X-1 B-1 A+4", "B-1 AB+4", "B-1 A+ 4", "I move B-1 A+4", "B-1 A+4!"),
        ],
    ),
    row(
        "boxnet",
        BOXES,
        [
            *map(json.dumps, (RED + BLUE, BLUE + RED, BOTH, [*RED, {}, *BLUE])),
            str(BOTH),
            json.dumps(BOTH, separators=(",", ":")).replace(", ", ","),
            "```json\n" + json.dumps(BOTH, indent=1) + "\n```",
        ],
        parts={json.dumps(RED): 0.5, json.dumps(RED + BLUE[:1]): 0.5},
    ),
    row(
        "boxnet",
        BOXES,
        wrong=[
            *("[[]]", "null", "0", "The plan: " + json.dumps(BOTH)),
            *map(json.dumps, ({}, [[]], ["move(box_red, target_red)"], [{"Agent[0.5, 0.5]": 1}], BOTH[0])),
            json.dumps([{**RED[0], **RED[1], **RED[2]}, *BLUE]),  # across three squares in one step
            json.dumps([*BOTH, BLUE[1]]),  # a box that is gone
            json.dumps([{"Agent[9.5, 0.5]": "move(box_red, target_red)"}, *BOTH]),
            json.dumps([{"Agent[1.5, 0.5]": "move(box_red, square[1.5, 1.5])"}, *BOTH]),
            json.dumps([{"Agent[0.5, 0.5]": "move(box_red, target_red)"}, *BOTH]),
            json.dumps([{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 2.5])"}, RED[2], *BLUE]),
            json.dumps([{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 0.5])"}, *BOTH]),
            json.dumps([{"Agent[0.5, 2.5]": "move(target_red, square[0.5, 1.5])"}, *BOTH]),
            json.dumps([{"Agent[0.5, 0.5]": "move(box_red, square[-1.5, 0.5])"}, *BOTH]),
            json.dumps([*RED[:2], {"Agent[0.5, 2.5]": "move(box_red, target_blue)"}, *BLUE]),
            # one agent does two things
            json.dumps([{**RED[0], "Agent[0.5,0.5]": BLUE[0]["Agent[0.5, 0.5]"]}, RED[1], BOTH[2]]),
            json.dumps(BOTH).replace("[{", '[{"Agent[0.5, 0.5]": "move(box_blue, square[1.5, 0.5])", ', 1),
            json.dumps([{"Agent[0.5, 0.5]": "wait"}, *BOTH]),
        ],
    ),
)
def test_answers_score_what_they_are_worth(row: Row) -> None:
    row.check()


def test_the_solver_of_rush_hour_finds_the_shortest_solution() -> None:
    """A slide of any length is one move. A wall before the car, and a board that is solved from the start."""
    assert gold_answer("rush_hour", TRAFFIC) == "B-1 A+4"
    start = time.perf_counter()
    solution = gold_answer("rush_hour", HARD_TRAFFIC)
    assert time.perf_counter() - start < 2.0
    assert solution is not None
    assert len(solution.split()) == 60  # as the library's table of puzzles lists
    assert grade("rush_hour", {}, HARD_TRAFFIC, solution) == 1.0
    for line, gold in (("AAoxoo", None), ("ooooAA", "")):
        assert gold_answer("rush_hour", entry(None, board_config="o" * 12 + line + "o" * 18)) == gold


def test_the_solver_of_boxnet_matches_all_boxes() -> None:
    """Also several boxes of a color, targets under boxes, and colors of two words."""
    for item in (MANY_BOXES, BOXES):
        assert grade("boxnet", {}, item, gold_answer("boxnet", item) or "") == 1.0


MAZE = entry(
    "", matrix=[["*", "O", "O"], ["O", "X", "O"], ["O", "O", "#"]], solution=["right", "right", "down", "down"]
)
CLOSED = entry("infeasible", matrix=[["*", "X", "#"]], solution=[])


def lock(solution: str, target: int, *buttons: tuple[str, str, int, str]) -> dict[str, Any]:
    """A lock that begins with 0 and a red light; buttons with name, type, value and active state."""
    keys = ("name", "type", "value", "active_state")
    return entry(
        " → ".join(solution),
        initial_value=0,
        initial_state="red",
        target_value=target,
        solution_path=list(solution),
        buttons=[dict(zip(keys, button, strict=True)) for button in buttons],
    )


A, B, C = ("A", "add", 2, "red"), ("B", "multiply", 2, "any"), ("C", "subtract", 1, "green")
GREEN, UP, DOWN = ("A", "add", 3, "green"), ("B", "add", 1, "any"), ("C", "subtract", 1, "any")


@table(
    row(
        "shortest_path",
        MAZE,
        [
            *("right right down down", "down down right right", "Right, Right, Down, Down"),
            *('["right", "right", "down", "down"]', "right → right -> down\ndown"),
        ],
        "right down right down | right right right down down left | right right down | right right down down please | "
        "infeasible",  # through a blocked cell, out of the grid, not far enough
        {"right left right right down down": 4 / 6 / 2},
    ),
    row("shortest_path", CLOSED, 'infeasible | Infeasible | "infeasible"', "right"),
    row(
        "quantum_lock",
        lock("ABB", 8, A, B, C),
        "A → B → B | a->b->b | A, B, B | ABB | ['A', 'B', 'B']",
        # the library ignores the second C, pressed in red light, and reads letters in any text
        ["A → C → C → A → B → B", "C → A → B → B", "A → B", "press A then B then B", "B → " * 2000],
        # a press without effect toggles the light all the same
        {"B → A → A → B → B": 3 / 5 / 2, "B → B → A → B → B": 3 / 5 / 2},
    ),
    row("quantum_lock", lock("AB", 4, A, B, C, ("D", "add", 2, "any")), "A B | D D | A D", "B D"),
    row("quantum_lock", lock("BA", 4, GREEN, UP, DOWN), "B A", "A A | A B | B B"),
    row("quantum_lock", lock("CAB", 3, GREEN, UP, DOWN), "C → A → B"),
    row("path_star", entry("1 3 5"), "1 3 5 | 1 -> 3 -> 5 | 1→3→5 | [1, 3, 5]", "1 3 5 5 | 5 3 1 | 135"),
)
def test_paths_and_presses_score_by_their_length(row: Row) -> None:
    """Any shortest path or sequence is right; a longer one scores half of its ratio to the shortest."""
    row.check()


def test_locks_with_a_shorter_sequence_by_the_letter_are_known() -> None:
    """`A → A` first presses a button without effect."""
    assert not is_shortest_lock(lock("CAB", 3, GREEN, UP, DOWN))
    assert is_shortest_lock(lock("BA", 4, GREEN, UP, DOWN))
    assert is_shortest_lock(lock("ABB", 8, A, B, C))


@given(st.lists(st.sampled_from(["up", "down", "left", "right"]), max_size=12))
def test_shortest_path_pays_only_what_arrives(path: list[str]) -> None:
    """Only the two shortest ways around the block get full value, among all paths tried."""
    right = path in (["right", "right", "down", "down"], ["down", "down", "right", "right"])
    assert (grade("shortest_path", {}, MAZE, " ".join(path)) == 1.0) == right
