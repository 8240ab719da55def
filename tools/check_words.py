"""Find wording that is not plain, idiomatic American English in documents and code.

    python tools/check_words.py           # documents, config comments, and comments and strings in code except tests
    python tools/check_words.py FILE...   # these files

Skips code (fenced or in backticks), URLs and the generated part of a page, whose text is checked in rg_env. The exit
code is 1 if anything is found.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]

PATTERNS: dict[str, str] = yaml.safe_load((ROOT / "tools" / "words.yaml").read_text(encoding="utf-8"))
ALLOWED = {"stand-in"}
"""Phrases that match a pattern but are plain English."""


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, the words and a better wording for each match in `text`."""
    for pattern, better in PATTERNS.items():
        for match in re.finditer(pattern, text, re.IGNORECASE if not pattern.startswith("(?m)") else 0):
            around = text[max(0, match.start() - 12) : match.end() + 12].lower()
            if not any(phrase in around for phrase in ALLOWED):
                yield text.count("\n", 0, match.start()) + 1, match[0].strip(), better


def prose(markdown: str) -> str:
    """Return a document without its generated part, with code and URLs replaced by spaces; line numbers are kept."""
    markdown = markdown.partition("<!-- generated from here on")[0]

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    for pattern in (r"(?ms)^```.*?^```", r"(?s)`[^`]+`", r"\]\([^)]*\)", r"https?://\S+", r"<[^>\n]*>"):
        markdown = re.sub(pattern, blank, markdown)
    return markdown


def code_prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of comments and of strings with a space: docstrings, messages, help texts."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"`[^`]*`", " ", node.value)


def comments(config: str) -> str:
    """Return a YAML or TOML file with everything except its comments replaced by spaces."""
    return re.sub(r"(?m)^(?:[^#\n]|(?<=\S)#)*", lambda match: " " * len(match[0]), config)


def files() -> list[Path]:
    """Return the documents, configs and modules to check by default."""
    named = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md")]
    code = [path for folder in ("rg_env", "examples", "benchmarks", "tools") for path in (ROOT / folder).rglob("*.py")]
    configs = [path for path in (ROOT / "configs").rglob("*") if path.suffix in (".yaml", ".toml")]
    return [*named, *sorted((ROOT / "docs").rglob("*.md")), *sorted(configs), *sorted(set(code) - {Path(__file__)})]


def check(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, the words and a better wording for each match in a file."""
    text = file.read_text(encoding="utf-8")
    plain = comments if file.suffix in (".yaml", ".toml") else prose
    for start, part in code_prose(text) if file.suffix == ".py" else [(1, plain(text))]:
        for line, words, better in findings(part):
            yield start + line - 1, " ".join(words.split()), better


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="documents or modules; default: all")
    found = [(file, *each) for file in parser.parse_args().files or files() for each in check(file)]
    for file, line, words, better in found:
        print(f"{file}:{line}: {words!r}: {better}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
