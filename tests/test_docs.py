"""Tests of the documentation: links resolve, examples work, generated pages are up to date, wording is plain."""

import ast
import importlib
import re
import shlex
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_words
import pytest
import reference_docs
from user_code import nothing_left

import rg_env
import rg_env.training
from rg_env.cli import launch
from rg_env.cli.main import make_parser
from rg_env.evaluation.load import load_eval_config
from rg_env.training.config.load import load_train_config

ROOT = Path(__file__).parents[1]
DOCUMENTS = [file for file in check_words.files() if file.suffix == ".md"]
FOLDERS = "benchmarks|configs|docs|examples|rg_env|tests|tools"
LAYERS = "adapters|inference|evaluation|training|publish|jobs|cli"
PARSERS = {name: parser for name, parser, _ in reference_docs.parsers()}


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def blocks(document: Path, language: str) -> list[str]:
    """Return the fenced blocks of a language in a document."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def with_blocks(language: str) -> Any:
    """Parametrize a test by the documents that have blocks of a language."""
    documents = [document for document in DOCUMENTS if blocks(document, language)]
    return pytest.mark.parametrize("document", documents, ids=name_of)


def without_code(document: Path) -> str:
    return re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[list[str]]:
    """Return the words of each command in a shell block, without preceding assignments."""
    lines = [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines()]
    found = []
    for line in lines:
        for part in " \0 ".join(line).replace(" \0 && \0 ", "\n").splitlines():
            words = part.split(" \0 ")
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            found.append(words)
    return found


def rg_env_commands(block: str) -> list[list[str]]:
    """Return the arguments of each `rg-env` command in a shell block; accelerate starts rg-env as a module."""
    found = []
    for words in commands(block):
        if words and words[0].endswith("rg-env"):
            found.append(words[1:])
        if "rg_env.cli.main" in words:
            found.append(words[words.index("rg_env.cli.main") + 1 :])
    return found


def anchors(document: Path) -> set[str]:
    """Return the anchors of a page's headings as code hosts and mkdocs generate them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_and_names_in_the_text_lead_somewhere(document: Path) -> None:
    """Every link leads to a file of the repository and, if it has an anchor, to a heading in that file. Files and
    modules in the text exist."""
    text = without_code(document)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        file = document.parent / target if target else document
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), f"{target}#{anchor}"
    assert stale(text) == []


PRINTED = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)
"""A printed result in an example."""
API = reference_docs.FOLDER / "api"
TRAINS = {API / f"{page}.md" for page in ("configs", "runs", "trainer")}
SHOWN = [document for document in DOCUMENTS if any(map(PRINTED.search, blocks(document, "python")))]


@pytest.mark.parametrize(
    "document", [pytest.param(each, marks=[pytest.mark.slow] if each in TRAINS else []) for each in SHOWN], ids=name_of
)
def test_python_examples_print_what_they_show(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples with `print(...)  # RESULT` are run. Every example of the Python API is one of them."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(document, "python"):
        printed: list[str] = []
        if shown := PRINTED.findall(block):
            show = {"print": lambda *values, to=printed: to.append(" ".join(map(str, values)))}
            exec(compile(block, name_of(document), "exec"), show)
        assert printed == shown
        assert shown or document.parent != API


@with_blocks("python")
def test_python_examples_compile_and_import_what_exists(document: Path) -> None:
    """Each example is a complete module."""
    for statement in (each for block in blocks(document, "python") for each in ast.walk(ast.parse(block))):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("rg_env"):
            module = importlib.import_module(str(statement.module))
            assert [each.name for each in statement.names if not hasattr(module, each.name)] == []


def remarks(file: Path) -> Iterator[str]:
    """Yield the docstrings and comments of a Python file."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
    with tokenize.open(file) as lines:
        for token in tokenize.generate_tokens(lines.readline):
            if token.type == tokenize.COMMENT:
                yield token.string


def is_written(name: str) -> bool:
    """Return whether a dotted name is a module or defined in one.

    Only reads files, because importing all modules is slow.
    """
    path, parts = ROOT, name.split(".")
    while parts and (path / parts[0] / "__init__.py").is_file():
        path /= parts.pop(0)
    file = path / f"{parts[0]}.py" if parts and (path / f"{parts[0]}.py").is_file() else path / "__init__.py"
    defined = parts[file.name != "__init__.py" :]
    text = file.read_text(encoding="utf-8")
    # Names are defined, or listed in quotes by a module that imports lazily.
    return all(re.search(rf'(?:^ *(?:async def |def |class )?|"){part}\b', text, re.MULTILINE) for part in defined)


def stale(text: str) -> list[str]:
    """Return files and modules that a text mentions but that do not exist.

    Ignores dotted names in backticks that could be config keys, such as `evaluation.tasks`.
    """
    paths = re.findall(rf"(?<![\w./])(?:{FOLDERS})/[\w./-]*\.py\b|(?<=`)(?:{FOLDERS})/[\w./-]+(?=`)", text)
    names = re.findall(rf"`((?:rg_env|core)\.[\w.]*\w|(?:{LAYERS})\.\w+\.[\w.]*\w)", text)
    own = [name for name in names if not name.endswith(".json") and ".NAME" not in name]
    return [path for path in paths if not (ROOT / path).exists()] + [
        name for name in own if not is_written(f"rg_env.{name.removeprefix('rg_env.')}")
    ]


@pytest.mark.parametrize("folder", ["benchmarks", "examples", "rg_env", "tests", "tools"])
def test_files_and_modules_in_docstrings_and_comments_exist(folder: str) -> None:
    files = [file for file in sorted((ROOT / folder).rglob("*.py")) if ".venv" not in file.parts]
    assert len(files) > 3
    found = {name_of(file): stale("\n".join(remarks(file))) for file in files}
    assert {name: stales for name, stales in found.items() if stales} == {}


@pytest.mark.parametrize(
    "gone", ["`core.splits`", "`core.data.splits.x`", "`rg_env.core.x.y`", "`training.a.b`", "docs/x.py", "`docs/x`"]
)
def test_a_stale_reference_is_found(gone: str) -> None:
    assert stale(f"See {gone}.") == [gone.strip("`")]
    assert stale("`core.data.splits`, `training.memory_estimate.estimate()`, `training.x`, tests/test_ci.py") == []


@with_blocks("yaml")
def test_yaml_examples_load(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's own loader reads each example. A fragment, which begins with `# fragment`, extends a small
    config."""
    for folder in ("configs", "examples"):  # examples extend and import files relative to the root of a clone
        (tmp_path / folder).symlink_to(ROOT / folder)
    file = tmp_path / "example.yaml"
    (tmp_path / "problems.jsonl").touch()
    (tmp_path / "base.yaml").write_text("model: {name: tiny}\ntasks: {leg_counting: {}}\n")
    monkeypatch.chdir(tmp_path)
    for block in blocks(document, "yaml"):
        file.write_text("extends: base.yaml\n" + block if block.startswith("# fragment\n") else block)
        with nothing_left():  # of the names that its imports register
            if re.search(r"^models:", block, re.MULTILINE):
                load_eval_config(file, [])
            else:
                load_train_config(file, [])


@with_blocks("bash")
def test_commands_and_scripts_have_the_options_that_are_shown(document: Path) -> None:
    """Commands are parsed but not run, and the configs that they name exist."""
    for block in blocks(document, "bash"):
        for words in rg_env_commands(block):
            if words[0] == "launch":
                launch.parse(make_parser()[0], words)
            else:
                PARSERS[words[0]].parse_args(words[1:])
            assert [word for word in words if word.startswith("configs/") and not (ROOT / word).is_file()] == []
        for words in commands(block):
            for script in [word for word in words if re.fullmatch(r"(examples|benchmarks|tools)/\S+\.py", word)]:
                text = (ROOT / script).read_text(encoding="utf-8")
                own = words[words.index("--" if "--" in words else script) + 1 :]  # after `--` in `rg-env launch`
                given = [word.partition("=")[0] for word in own if word.startswith("--")]
                assert [option for option in given if f'"{option}"' not in text] == []


@pytest.mark.parametrize("name", sorted(reference_docs.PAGES))
def test_generated_pages_are_current(name: str) -> None:
    """`python tools/reference_docs.py` writes these pages."""
    text = (reference_docs.FOLDER / name).read_text(encoding="utf-8")
    assert text == reference_docs.render(name)
    assert "| `...` |" not in text


def test_presets_fit_the_gpu_in_their_name() -> None:
    """The estimated peak leaves a tenth of the memory free."""
    for preset in (file.stem for file in reference_docs.PRESETS):
        size = int(preset.rpartition("_")[2].removesuffix("gb"))
        assert reference_docs.preset_peak(preset) <= 0.9 * size, preset


@pytest.mark.parametrize("preset", reference_docs.PRESETS, ids=lambda file: file.stem)
def test_presets_leave_the_experiment_as_it_is(preset: Path, tmp_path: Path) -> None:
    """Presets change how a step is computed, but not the model, tasks or batch."""
    experiment = ROOT / "configs" / "train" / "leg_counting_qwen7b.yaml"
    (tmp_path / "small.yaml").write_text(f"extends: [{experiment}, {preset}]")
    plain, small = load_train_config(experiment), load_train_config(tmp_path / "small.yaml")
    assert (small.model.name, small.tasks) == (plain.model.name, plain.tasks)
    assert small.training.rollouts_per_step == plain.training.rollouts_per_step
    assert small.engine.max_batch_size < plain.engine.max_batch_size


def test_the_api_pages_list_the_public_names() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in API.iterdir()}
    listed = re.findall(r"^::: (\S+)$", "\n".join(pages.values()), re.MULTILINE)
    errors = {name for name in dir(rg_env) if name.endswith("Error")}
    names = {name for name in dir(rg_env) if not name.startswith("__")} - errors
    training = {f"rg_env.training.{name}" for name in dir(rg_env.training)}
    assert sorted(listed) == sorted({*(f"rg_env.{name}" for name in names), "rg_env.errors", *training})
    for text in pages.values():
        assert all("```python" in section for section in re.split("^## ", text, flags=re.MULTILINE)[1:])
    overview = (reference_docs.FOLDER / "api.md").read_text(encoding="utf-8")
    for name in set(listed) - {"rg_env.errors"}:
        [page] = [page for page, text in pages.items() if f"::: {name}\n" in f"{text}\n"]
        assert re.search(rf"^\| \[[^|]*\]\(api/{page}\.md\) \|.*`{name.rpartition('.')[2]}`", overview, re.MULTILINE)


def test_the_repositorys_address_is_in_one_place() -> None:
    """The address is only in mkdocs.yml, as `extra.repository`, and in the install commands."""
    (address,) = re.findall(r"^  repository: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    for document in DOCUMENTS:
        shown = re.findall(r"https://\S+/OWNER/\w+", document.read_text(encoding="utf-8"))
        assert set(shown) <= {address}
        assert not shown or name_of(document) in ("docs/index.md", "docs/tutorials/install.md", "README.md")


@pytest.mark.parametrize("folder", sorted({file.relative_to(ROOT).parts[0] for file in check_words.files()}))
def test_words_are_plain_english(folder: str) -> None:
    """`python tools/check_words.py` prints the same findings."""
    files = [file for file in check_words.files() if file.relative_to(ROOT).parts[0] == folder]
    assert [finding for file in files for finding in check_words.check(file)] == []


@pytest.mark.parametrize(
    "sentence",
    ["It stands in the config.", "The file lies beside it.", "A line tells why.", "It goes on.", "So many of them."],
)
def test_other_wording_is_found(sentence: str) -> None:
    assert list(check_words.findings(sentence))
    assert not list(check_words.findings(check_words.prose(f"`{sentence}`\n\n```text\n{sentence}\n```\n")))
