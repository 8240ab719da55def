"""Python and packages against what rg-env's own metadata asks for: there is no second list of versions."""

import platform
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rg_env.jobs.doctor.asked_run import AskedRun, Check

_PYTHON = "Programming Language :: Python :: "
_EXTRA = re.compile(r'extra == "([^"]+)"')
INSTALL = "`pip install 'rg-env[train]'`, or ./setup.sh in a checkout"


def check_versions(run: AskedRun) -> list[Check]:
    """Of Python, and of the packages that `run` needs or that are there although it does not."""
    try:
        own = metadata.metadata("rg-env")
        requirements = [Requirement(text) for text in metadata.requires("rg-env") or []]
    except metadata.PackageNotFoundError:
        fix = "`pip install -e .`, or ./setup.sh, in the checkout"
        return [
            Check("packages", "warning", "rg-env itself is not installed, so nothing tells the tested versions", fix)
        ]
    tested = [text.removeprefix(_PYTHON) for text in own.get_all("Classifier") or [] if text.startswith(_PYTHON)]
    extras = ["train", "vllm"] if run.engine == "vllm" else ["train"]
    return [
        check_python(platform.python_version(), (own["Requires-Python"] or ""), tested),
        check_packages(requirements, extras, installed_version),
    ]


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_python(version: str, required: str, tested: Sequence[str]) -> Check:
    """`required` as in Requires-Python, `tested` the versions among the classifiers."""
    fix = f"use Python {' or '.join(tested) or required}; ./setup.sh gets one"
    if not SpecifierSet(required).contains(version, prereleases=True):
        return Check("python", "failed", f"{version}, and rg-env needs {required}", fix)
    if tested and ".".join(version.split(".")[:2]) not in tested:
        return Check("python", "warning", f"{version} is outside the tested set ({', '.join(tested)})", fix)
    return Check("python", "ok", version)


def check_packages(
    requirements: Iterable[Requirement], extras: Sequence[str], installed: Callable[[str], str | None]
) -> Check:
    """Packages of the base and of `extras` against their ranges; those of other extras where they are installed.

    A warning, not a failure: whether training can start without them, or with others, shows when the trainer is
    imported.
    """
    wanted: dict[str, tuple[SpecifierSet, bool]] = {}
    for requirement in requirements:
        named = _applies(requirement, "", *extras)
        if not named and not _applies(requirement, *_EXTRA.findall(str(requirement.marker))):
            continue  # another platform's
        specifier, needed = wanted.get(requirement.name, (SpecifierSet(), False))
        wanted[requirement.name] = (specifier & requirement.specifier, needed or named)
    missing, outside, fine = [], [], 0
    for name, (specifier, needed) in wanted.items():
        version = installed(name)
        if version is None:
            missing += [name] if needed else []
        elif specifier.contains(version, prereleases=True):
            fine += 1
        else:
            outside.append(f"{name} {version} ({specifier})")
    if not missing and not outside:
        return Check("packages", "ok", f"all {fine} within the tested ranges")
    parts = [f"outside the tested range: {', '.join(outside)}"] if outside else []
    parts += [f"not installed: {', '.join(missing)}"] if missing else []
    fixes = [INSTALL] if outside or set(missing) - {"vllm"} else []
    fixes += ["`uv sync --extra vllm`"] if "vllm" in missing else []
    return Check("packages", "warning", "; ".join(parts), " and ".join(fixes))


def _applies(requirement: Requirement, *extras: str) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
