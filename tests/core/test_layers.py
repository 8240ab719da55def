"""The layer rule, and the cost of imports."""

import ast
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest
from run_code import run_code

import rg_env

PACKAGE = Path(rg_env.__file__).parent
VERIFIERS = version("verifiers")
LAYERS = ["errors", "core", "tiny", ("adapters", "inference"), "evaluation", "training", "publish", "jobs", "cli"]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in ([layer] if isinstance(layer, str) else layer)}
FILES = sorted(PACKAGE.rglob("*.py"))


def _run(code: str) -> str:
    return run_code(code).stdout.strip()


def _layer_of(name: str) -> str:
    """The layer of a part of the package: each folder is one, errors.py is one, other single files belong to cli."""
    if name in rg_env._LAZY:  # a public name, imported from rg_env itself
        name = rg_env._LAZY[name].split(".")[1]
    if name in RANK:
        return name
    assert not name or not (PACKAGE / name).is_dir(), f"{name} belongs to no layer"
    return "cli" if (PACKAGE / f"{name}.py").exists() else "errors"  # errors and __version__, from rg_env itself


def _modules_of_ours(path: Path) -> set[str]:
    """Dotted names under rg_env that the file imports anywhere, except for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "rg_env"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    """A module imports from its own layer and earlier ones only: core -> adapters, inference -> ... -> cli."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if name in ("__init__", "__main__"):
        return
    layer = _layer_of(name)
    for name in _modules_of_ours(path):
        other = [*name.split("."), ""][1]
        other = _layer_of(other)
        if other != layer:
            assert RANK[other] < RANK[layer], f"{path} imports {name}"


def test_no_folder_has_too_many_modules() -> None:
    """A folder has at most 15 modules (`cli` may have one for each command), and the package at most 170."""
    assert len(FILES) <= 170
    folders = Counter(path.parent.relative_to(PACKAGE) for path in FILES)
    assert {str(folder): n for folder, n in folders.items() if n > 15 and str(folder) != "cli"} == {}


def _graph() -> dict[str, set[str]]:
    """The modules of the package, with the modules that each imports anywhere in its code."""
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
               for path in FILES}  # fmt: skip
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        named = _modules_of_ours(path)
        found = {name if name in modules else name.rpartition(".")[0] for name in named}
        assert found <= {*modules, ""}, f"{module} imports what is not there: {found - modules.keys()}"
        graph[module] = {name for name in found if name in modules and name != module}
    return graph


def test_there_are_no_import_cycles() -> None:
    """Cycles of any length count, including those through imports inside functions."""
    graph = _graph()
    assert len(graph) > 100
    assert "rg_env.core.tasks.mixture" in graph["rg_env.core.environment"]
    while leaves := [module for module, imports in graph.items() if not imports & graph.keys()]:
        for module in leaves:
            del graph[module]
    assert not graph, f"among these, modules import each other: {', '.join(sorted(graph))}"


TRAINING = [
    "config", "preflight", "collectives", "reporting", "algorithms", "memory_estimate", "curriculum", "checkpointing",
    "strategy", "rollouts", "weight_sync", "vllm_engine", "monitors", "trainer", "hub_uploads", "evaluation", "run",
    "from_config",
]  # fmt: skip
"""The folders and modules of training, in the order in which they may import one another."""


def test_the_parts_of_training_import_only_earlier_ones() -> None:
    rank = {part: number for number, part in enumerate(TRAINING)}
    prefix = "rg_env.training."
    arrows = {
        (module.removeprefix(prefix).split(".")[0], name.removeprefix(prefix).split(".")[0])
        for module, imports in _graph().items()
        for name in imports
        if module.startswith(prefix) and name.startswith(prefix)
    }
    assert {part for arrow in arrows for part in arrow} <= rank.keys()
    assert {arrow for arrow in arrows if rank[arrow[0]] < rank[arrow[1]]} == set()


def test_core_imports_nothing_heavy() -> None:
    """All modules of core can be imported without torch, transformers, verifiers, vllm, datasets and reasoning_gym."""
    modules = sorted(
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in FILES
        if path.relative_to(PACKAGE).parts[0] == "core"
    )
    heavy = "{'torch', 'verifiers', 'vllm', 'reasoning_gym', 'datasets', 'transformers'}"
    assert _run(f"import sys, {', '.join(modules)}; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_import_is_light() -> None:
    """`import rg_env` takes under 0.2 s of CPU time and imports no heavy libraries."""
    heavy = "{'torch', 'verifiers', 'reasoning_gym', 'datasets', 'pydantic', 'yaml', 'numpy'}"
    code = f"""
import sys, time
start = time.process_time()
import rg_env
seconds = time.process_time() - start
dir(rg_env), rg_env.__version__
print(seconds, sorted({heavy} & set(sys.modules)))
"""
    runs = [_run(code).split(" ", 1) for _ in range(3)]
    assert min(float(seconds) for seconds, _ in runs) < 0.2
    assert {modules for _, modules in runs} == {"[]"}


def test_public_names_resolve() -> None:
    """Every name in `dir(rg_env)` resolves, including those of Verifiers' v1 API; any other raises AttributeError."""
    for name in dir(rg_env):
        assert getattr(rg_env, name) is not None
    assert {
        *rg_env.__all__,
        "load_environment",
        "ReasoningGymEnv",
        "Environment",
        "ReasoningGym",
        "import_user_code",
        "reward",
        "Rollout",
        "Score",
        "RGEnvError",
    } <= set(dir(rg_env))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rg_env.nothing


def _errors(setup: str, *names: str) -> list[str]:
    """The errors that these names of rg_env raise in a new process, after `setup`."""
    code = f"""
import sys, types
{setup}
import rg_env
for name in {names!r}:
    try:
        getattr(rg_env, name)
    except rg_env.MissingExtraError as error:
        print(f"{{type(error).__name__}} {{error}}")
"""
    return _run(code).splitlines()


def test_the_cause_of_a_failed_adapter_import_is_reported() -> None:
    """The error does not claim that the release lacks an API that it has."""
    for setup in ('sys.modules["httpx"] = None', 'import verifiers; sys.modules["httpx"] = None'):
        (error,) = _errors(setup, "load_environment")
        assert error.startswith(
            f"MissingExtraError rg_env.load_environment cannot be imported with verifiers {VERIFIERS}: "
        )
        assert "httpx" in error


def test_the_v1_names_are_refused_where_the_release_lacks_them() -> None:
    """The error names the releases that have them. It is not an AttributeError, from which Verifiers' loader would
    conclude that the package is empty."""
    setup = 'sys.modules["verifiers.v1"] = None'
    assert [line.partition(": ")[0] for line in _errors(setup, *rg_env.__all__)] == [
        f"MissingExtraError rg_env.{name} needs the v1 API of Verifiers, which verifiers {VERIFIERS} lacks (install "
        "0.2.1 or later)"
        for name in rg_env.__all__
    ]


def test_load_environment_works_without_verifiers() -> None:
    """`load_environment` returns the plain environment; `ReasoningGymEnv` raises an error with both remedies."""
    code = """
import sys
sys.modules["verifiers"] = None
import rg_env
env = rg_env.load_environment("leg_counting", num_train_examples=2, num_eval_examples=1)
print(type(env).__name__, len(env.train_rows))
try:
    rg_env.load_environment(gyn=1)
except rg_env.RGEnvError as error:
    print(type(error).__name__, error)
"""
    plain, unknown = _run(code).splitlines()
    assert plain == "ReasoningGym 2"
    assert unknown == "UnknownNameError unknown parameter 'gyn' of the environment: did you mean 'gym'?"
    hidden = "import importlib.metadata as m; found = m.version; sys.modules['verifiers'] = None\n"
    hidden += "def version(name):\n    if name == 'verifiers': raise m.PackageNotFoundError(name)\n"
    hidden += "    return found(name)\nm.version = version"
    (refused,) = _errors(hidden, "ReasoningGymEnv")
    assert refused.startswith("MissingExtraError rg_env.ReasoningGymEnv needs verifiers, which is not installed ")
    assert "(run `pip install verifiers`, or use rg_env.ReasoningGym)" in refused
