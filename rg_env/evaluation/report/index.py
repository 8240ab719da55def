"""Index page for a folder of runs, such as `outputs/` or a sweep: one row and one curve per run.

page, pages = index_page(Path("outputs"), Path("outputs"), 10_000)
"""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from rg_env.core.run_folder import RunFolder
from rg_env.core.text import counted
from rg_env.errors import InputError
from rg_env.evaluation.questions import ROLLOUTS
from rg_env.evaluation.report.content import Chart, Page, results_page, run_page
from rg_env.evaluation.results import results_files
from rg_env.evaluation.tables import Table, columns_of

REPORT = "report.html"
_CURVES = 8
"""Maximum number of runs in the chart, which has as many colors."""


def page_of(folder: Path, limit: int) -> Page | None:
    """Return the content of the report on a run or an evaluation, or None for other folders."""
    if RunFolder.is_run(folder):
        return run_page(folder, limit)
    return results_page(folder, limit) if (folder / ROLLOUTS).is_file() or results_files(folder) else None


def runs_in(folder: Path) -> list[Path]:
    """Return the folders of runs and evaluations in `folder`, and in the sweeps in it, in order of their names."""
    found = []
    for each in sorted(path for path in folder.iterdir() if path.is_dir()):
        if RunFolder.is_run(each) or (each / ROLLOUTS).is_file() or results_files(each):
            found.append(each)
        elif (each / "sweep.yaml").is_file():
            found += runs_in(each)
    return found


def index_page(
    folder: Path, start: Path, limit: int, tables: Sequence[Table] = (), charts: Sequence[Chart] = ()
) -> tuple[Page, dict[Path, Page]]:
    """Return the index of the runs in `folder`, and the report of each run. A damaged run is listed with its error.

    Args:
        start: folder of the index, to which links are relative.
        limit: maximum number of rollouts in each report.
        tables: tables to show above the list, such as the comparison of a sweep's settings.
        charts: charts to show instead of the curves of up to `_CURVES` runs.
    """
    index, pages = Page(folder.resolve().name, "folder of runs", tables=[*tables]), dict[Path, Page]()
    rows, curves = [], {}
    for each in runs_in(folder):
        name = str(each.relative_to(folder))
        row = {"run": name}
        try:
            page = page_of(each, limit)
            assert page is not None
        except InputError as error:
            rows.append(row | {"state": "damaged"})
            index.notes.append(str(error))
            continue
        pages[each], facts = page, dict(page.facts)
        index.links[name] = f"./{quote(os.path.relpath(each / REPORT, start))}"
        index.is_unfinished |= page.is_unfinished
        result = {} if not page.verdicts else {"result": page.verdicts[0].headline, "outcome": page.verdicts[0].outcome}
        state = facts.get("state", "not finished" if page.is_unfinished else "finished")
        row |= {"result": "", "outcome": "", **result, "state": state, "steps": facts.get("steps", "")}
        rows.append(row | {"kind": page.kind, "about": page.title, "date": facts.get("date", "")})
        if page.charts and page.charts[0].share and (line := page.charts[0].lines.get("sampled")):
            curves[name] = line
    index.facts = [("runs", counted(len(rows), "run"))]
    if charts:
        index.charts = [*charts]
    elif len(curves) <= _CURVES:
        index.charts = [Chart("Accuracy on the frozen questions", curves, share=True)] if curves else []
    else:
        index.notes.append(f"only up to {_CURVES} runs are drawn: see `rg-env plot --group` for the means of more runs")
    index.tables.append(Table("Runs", *columns_of([{k: v or "–" for k, v in row.items()} for row in rows])))
    return index, pages
