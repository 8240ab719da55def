"""A report's page as one HTML file that needs nothing else, and in which nothing that a model wrote can run.

What is known stands in the page as JSON, in which no character is left that HTML gives a meaning to; the page's code
shows it as text. Should that fail, the policy of the page (CSP) still runs no script but the page's own, by its hash,
refuses text as markup (trusted types), and loads nothing.
"""

import base64
import hashlib
import html
import json
from importlib import resources
from string import Template
from typing import Any

from rg_env.evaluation.report.parts import Page

_STYLES = ("page.css", "rollouts.css", "print.css")
_SCRIPTS = ("dom.js", "charts.js", "overview.js", "model.js", "list.js", "detail.js", "main.js")
"""In this order in one script."""
_DATA_ID = "report-data"


def render(page: Page) -> str:
    """The HTML of a page."""
    style, script = _joined(_STYLES), _joined(_SCRIPTS)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return Template(_file("page.html")).substitute(
        policy=policy,
        title=html.escape(page.title, quote=False),
        style=style,
        script=script,
        data_id=_DATA_ID,
        data=as_script_data(page.as_json()),
    )


def as_script_data(values: Any) -> str:
    """JSON for a `<script type="application/json">`: ASCII without `<`, `>` and `&`, so that no text in it can end the
    script, begin a comment, or be an entity; whoever parses it gets the same text back."""
    text = json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _joined(names: tuple[str, ...]) -> str:
    return "\n".join(_file(name) for name in names)


def _file(name: str) -> str:
    return resources.files("rg_env.evaluation.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a policy names an inline script or style. The text is as the browser sees it, with `\\n` line ends."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
