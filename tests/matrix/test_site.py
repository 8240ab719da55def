"""The documentation site, built by mkdocs in a separate environment."""

import json
import re
from pathlib import Path

import pytest
from release_environments import uv

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_the_site_builds_without_warnings_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    """The option -q would hide warnings from `--strict`. Pages contain no scripts, styles or pictures from other hosts,
    so they work offline."""
    environment, site = str(tmp_path / "environment"), tmp_path / "site"
    run = ("run", "-q", "--frozen", "--only-group", "docs", "mkdocs", "build", "--strict", "-d", site)
    uv(*run, UV_PROJECT_ENVIRONMENT=environment, NO_MKDOCS_2_WARNING="1")
    for page, text in {"environments": "num_train_examples", "trainer": "GRPOTrainer"}.items():
        assert text in (site / "reference" / "api" / page / "index.html").read_text(encoding="utf-8")
    found = {entry["title"] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    assert {"<code>training.learning_rate</code>", "<code>curriculum.tasks.NAME.start</code>"} <= found
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"""<(?:script|img|iframe)[^>]* src=["']?(?:https?:)?//""", text), page
        assert not re.findall(
            r"""<link[^>]* rel=["']?(?:stylesheet|preconnect)[^>]* href=["']?(?:https?:)?//""", text
        ), page
