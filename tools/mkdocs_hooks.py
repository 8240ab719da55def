"""Hooks for the documentation site (mkdocs.yml), so that pages look the same on a code host and on the site.

- A line `<!-- include: ../CHANGELOG.md -->` is replaced by the contents of that file.
- A relative link to a file outside `docs/` becomes a link into the repository (`extra.repository`).
- In `::: rg_env.NAME`, a public name is replaced by its full path, because the package resolves names lazily.
- In search results, tutorials and troubleshooting precede the pages of the Python API, which mention most words.
- On the pages of the Python API, the headings of the documented objects are removed, because each object has a heading
  of its own in the page, above its example.

This module uses only the standard library, because mkdocs' environment does not have rg_env's dependencies.
"""

import ast
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(\))")
INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)
PUBLIC_NAME = re.compile(r"^::: (rg_env|rg_env\.training)\.(\w+)$", re.MULTILINE)
OBJECT_HEADING = re.compile(r"""<h3 id="(rg_env[^"]*)" class="doc doc-heading">.*?</h3>""", re.DOTALL)
BOOSTS = {"tutorials/": 2, "troubleshooting.md": 2, "reference/api/": 0.5}
"""Factors for ranks in search results, by the start of a page's path."""
TABLE = "_MODULES"
"""Variable in a package's `__init__.py` that maps modules (without the leading `rg_env.`) to public names."""


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Process the text of a page; called by mkdocs."""
    source = PurePosixPath("docs", page.file.src_uri)
    boost = next((each for start, each in BOOSTS.items() if page.file.src_uri.startswith(start)), 1)
    page.meta["search"] = {"boost": boost}
    markdown = _with_repository_links(markdown, source, source, config.extra["repository"])
    markdown = INCLUDE.sub(lambda match: _included(match[1], source, config.extra["repository"]), markdown)
    return PUBLIC_NAME.sub(lambda match: f"::: {address_of(match[1], match[2])}", markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Process a rendered page and its table of contents; called by mkdocs."""
    if not page.file.src_uri.startswith("reference/api/"):
        return html
    for title in page.toc:
        for name in title.children:
            name.children = [member for documented in name.children for member in documented.children]
    return OBJECT_HEADING.sub(r'<a id="\1"></a>', html)


def address_of(package: str, name: str) -> str:
    """Look up the full path of a public name in the package's table, which is read without importing the package. For
    other names, return `package.name`."""
    file = ROOT / package.replace(".", "/") / "__init__.py"
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == TABLE for target in targets):
            table: ast.Dict = statement.value  # type: ignore[attr-defined]
            for module, names in zip(table.keys, table.values, strict=True):
                if any(isinstance(node, ast.Constant) and node.value == name for node in ast.walk(names)):
                    return f"rg_env.{ast.literal_eval(module)}.{name}"  # type: ignore[arg-type]
            return f"{package}.{name}"
    raise KeyError(f"{file} has no {TABLE}")


def _included(name: str, source: PurePosixPath, repository: str) -> str:
    file = PurePosixPath(os.path.normpath(source.parent / name))
    text = (ROOT / file).read_text(encoding="utf-8")
    return _with_repository_links(text, file, source, repository)


def _with_repository_links(text: str, file: PurePosixPath, page: PurePosixPath, repository: str) -> str:
    """Return the text of `file` with its relative links adjusted for `page`."""

    def replaced(match: re.Match[str]) -> str:
        target = PurePosixPath(os.path.normpath(file.parent / match[2]))
        if target.parts[0] == "docs":
            address = os.path.relpath(target, page.parent)
        else:
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            address = f"{repository}/{kind}/main/{target}"
        return f"{match[1]}{address}{match[3] or ''}{match[4]}"

    return LINK.sub(replaced, text)
