"""Long answers that are slow to grade, for `scoring.py --times` and for the tests of grading time.

Each shape is a worst case for a parser: a long run that almost matches, an unclosed bracket or quote, deep nesting, or
many parts. Many shapes are also combined with the gold answer.
"""

from collections.abc import Iterator

OPENERS = [
    "", "```", "```a\n", r"\boxed{", r"\boxed{\text{", r"\text{", "$", "$$", r"\(", "[", "[[", "(", "{", '"', "'", "“",
    "**", "`", r"\begin{pmatrix}", r"\begin{array}{", r"\frac{", "The answer is ", "Answer: ", "x = ", "0x", "1.", "-",
    "move(", '{"a": ', "∫", "F(x)",
]  # fmt: skip
RUNS = [
    "a", " ", "1", "0", "\n", "\t", "\u00a0", "_", "-", "+", "~", ".", ",", "=", '"', "'", "`", "*", "$", "\\", "/",
    "|", "(", ")", "[", "]", "{", "}", "{}", "[]", "()", "[[", "[],", "][", "] [", "1,", "1 ", "1;", "1\n", "1|",
    "1, ", " ,", " \n", "-\n", "\r\n", "-1 ", "+1", "1+", "1*", "1/", "1=", "1e", "0.", "1,111", "1_", ",111",
    " 111", "{,}111", r"\,111", "a ", "a,", "a\n", "a, ", '"a",', "'1',", '"a":1,', '{"a":1},', '{"a":', "[1],",
    "[1,0],", "(1,)", "'\\'", "\\u0041", r"\ ", "x", "x*", "x+", "x*x+", "(x+1)", "x^", "x**2", "sin", "sin(",
    "sin x", "e^", "C", "|x|", r"\frac{1}{2}", r"\frac{", r"\cdot ", "¬", "not ", "A∧", "(A∨", "A→", "A↔B∧", "P ",
    "٣", "٣ ", "−", "²", "x²", "½", "é", "e\u0301", "🧩", "❤\ufe0f", "ß", "İ", "\u200b", "R ", "R' ", "R2 U' ",
    "3Rw2 ", "(R) ", "M", "U", "UDLR", "A+1 ", "A-1,", "AA+1 ", "A → ", "->", "-->", "A->B ", "right ", "down ",
    "w,A1,B3,", "w , A1 , B3 ", "fill A,", "pour A->B,", "empty A\n", "1. ", "- ",
    "move disk 1 from peg 1 to peg 2\n", "Move disk 1 from Peg 1 to Peg 2. ",
    '{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 1.5])"},', "\n1 day, 00:00", "A=1,", "A1", "is a knight ",
    "knight ", "are ", "and ", "1 and ", "1 or ", "x = 1, ", "1°", "^\\circ", " ° ", "√5", "√", "1%", "$1", "legs",
    "true ", "Yes ", "#", "_ Q ", "_Q", "< ", "∧ ", "&", "\\\\", "1&2\\\\", r"\end{pmatrix}", r"\boxed{", r"\text{",
    "**1**", "<answer>", "</answer>", "<", "&amp;", "%s", "\x00", "\ud800", "0b1", "f", "fg", "1.5e3,", "9",
    "3.0+2.0i ", "i",
]  # fmt: skip
CLOSERS = ["", ".", "!", "x", "1", " ", "}", "]", ")", '"', "```", "**", "$", "\n```", "]]", "}}", "}.", "’"]


def shapes(gold: str) -> Iterator[tuple[str, str, str]]:
    """Yield shapes as (opener, run, closer); the run is repeated to reach a given length."""
    around = list(dict.fromkeys(("", gold)))
    starts = (gold[:1], gold[:8], *gold.split()[:2], *gold.splitlines()[:1])
    pieces = [piece for piece in dict.fromkeys(starts) if piece]
    for run in [*RUNS, *(f"{piece}{end}" for piece in pieces for end in ("", " ", ",", "\n"))]:
        for closer in CLOSERS[:4]:
            yield "", run, closer
        yield gold, run, ""
        yield "", run, gold
    for opener in OPENERS[1:]:
        for run in ("a", " ", "1", "\n", "{}", "1,", "٣", "x", '\\"', opener):
            yield from ((opener, run, closer) for closer in CLOSERS)
    for piece in [*pieces, "1", "a", "(", "[", "{"]:
        for inner in around:
            yield piece, piece, inner
            yield inner, piece, {"(": ")", "[": "]", "{": "}"}.get(piece, piece)


def answers(gold: str, length: int) -> Iterator[str]:
    """Yield each shape as a text of at most `length` characters, and nested brackets such as `[[[...]]]`."""
    for opener, run, closer in dict.fromkeys(shapes(gold)):
        room = length - len(opener) - len(closer)
        if room > 0:
            yield opener + (run * (room // len(run) + 1))[:room] + closer
    nests = ("()", "[]", "{}", ("\\boxed{", "}"), ("**", "**"), ("$", "$"), ("\\frac{", "}{1}"), ("x^(", ")"))
    for left, right in nests:
        times = (length - len(gold)) // (len(left) + len(right))
        for inner in ("", "1", gold):
            yield left * times + inner + right * times
