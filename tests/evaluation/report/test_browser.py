"""Tests of reports in headless Chromium: rendering, keyboard control, accessibility and security."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_samples import (
    HOSTILE,
    evaluated,
    evaluation_record,
    evaluation_records,
    results_of_records,
    write_evaluation,
    write_lines,
    write_run,
)

from rg_env.evaluation.report import write_report

selenium = pytest.importorskip("selenium", reason="needs selenium, a development dependency")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver: apt-get install chromium chromium-driver"
    ),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1300,900",
)  # fmt: skip


class Browser:
    """A browser with one open page."""

    def __init__(self, driver: Any):
        self.driver = driver

    def open(self, page: Path) -> "Browser":
        """Load the page without any earlier state."""
        self.driver.get("about:blank")
        self.logs("browser")
        self.logs("performance")
        self.driver.get(page.absolute().as_uri())
        deadline = time.monotonic() + 30  # on a busy machine, `get` returns before the page's script has run
        while not self.run("return document.documentElement.dataset.ready"):
            assert time.monotonic() < deadline, self.logs("browser")
            time.sleep(0.02)
        return self

    def logs(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.driver.get_log(kind)
        return found

    def requests(self) -> list[str]:
        """Return the URLs that the page requested, except its own."""
        events = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not (url.startswith("file://") and url.endswith(".html"))]

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, css: str) -> str:
        """Return all text of an element, whether visible or collapsed."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", css))

    def texts(self, css: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent.toWellFormed())"
        return list(self.run(script, css))

    def press(self, *keys: str) -> None:
        """Send keys to the focused element."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def choose(self, css: str, value: str) -> None:
        Select(self.driver.find_element("css selector", css)).select_by_value(value)
        self.settle()

    def click(self, name: str) -> None:
        self.driver.find_element("id", name).click()
        self.settle()

    def write(self, css: str, text: str) -> None:
        element = self.driver.find_element("css selector", css)
        element.clear()
        element.send_keys(text)
        self.settle()

    def settle(self) -> None:
        """Wait until the page has handled the input, which it debounces."""
        self.driver.execute_async_script("setTimeout(arguments[0], 200)")

    def focus(self) -> str:
        return str(self.run("return document.activeElement.id"))

    def chosen(self) -> str:
        """Return the position of the selected row as a screen reader announces it."""
        row = self.run(
            "const row = document.getElementById(list.getAttribute('aria-activedescendant'));"
            "return row && row.getAttribute('aria-selected') === 'true' && row.getAttribute('aria-posinset')"
        )
        return str(row)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    assert CHROMIUM is not None
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(30)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("report") / "run")).file


@pytest.fixture(scope="module")
def evaluation_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_evaluation(tmp_path_factory.mktemp("report") / "eval")).file


@pytest.fixture
def browser(driver: Any) -> Iterator[Browser]:
    """Check that the page has not logged an error or a warning."""
    browser = Browser(driver)
    yield browser
    assert browser.logs("browser") == []


@pytest.fixture
def in_browser(browser: Browser, tmp_path: Path) -> Callable[[list[dict[str, Any]]], Browser]:
    """Return a function that opens the report of an evaluation with these rollouts."""

    def call(records: list[dict[str, Any]]) -> Browser:
        write_lines(tmp_path / "rollouts.jsonl", records)
        return browser.open(write_report(tmp_path).file)

    return call


@pytest.mark.parametrize("kind", ["run_page", "evaluation_page"])
def test_page_opens_without_errors_or_network_access(
    browser: Browser, kind: str, request: pytest.FixtureRequest
) -> None:
    """All charts and tables are drawn without console messages, and only the file itself is requested."""
    browser.open(request.getfixturevalue(kind))
    wait = WebDriverWait(browser.driver, 10)
    wait.until(lambda _: browser.run("return document.querySelectorAll('#bars svg rect.bar').length") >= 2)
    assert browser.text("#title") in ("tiny on chain_sum", "base, trained on leg_counting")
    assert browser.texts("table th")
    assert browser.requests() == []
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


def test_charts_have_text_alternatives(browser: Browser, run_page: Path) -> None:
    """Charts have text alternatives, step ticks are integers, and any metric can be chosen."""
    browser.open(run_page)
    WebDriverWait(browser.driver, 10).until(lambda _: len(browser.texts("#charts .plot svg")) == 3)
    labels = browser.run("return [...document.querySelectorAll('.plot svg')].map((e) => e.getAttribute('aria-label'))")
    assert "sampled from 0.17 at step 0 to 0.50 at step 4" in labels[0]
    assert "chain_sum: step 0 0.17 [" in labels[-1]
    assert ", step 4 0.50 [" in labels[-1]
    assert browser.texts("#charts .plot svg:first-child .tick.middle")[:5] == ["0", "1", "2", "3", "4"]
    browser.choose(".metric select", "reward")
    WebDriverWait(browser.driver, 10).until(
        lambda _: (
            browser.run("return document.querySelector('.metric .plot svg')?.getAttribute('aria-label')")
            == "Any metric: reward from 0.25 at step 1 to 1 at step 4"
        )
    )
    assert browser.focus() != "list"


def test_model_output_is_shown_and_never_run(in_browser: Callable[..., Browser]) -> None:
    """In no field does hostile text run a script, create an element or load a resource; it is shown literally."""
    texts = ("question", "completion", "reasoning", "answer", "extracted", "model", "task", "detail", "status", "error")
    records = [evaluation_record("base", n, 0, True) | dict.fromkeys(texts, text) for n, text in enumerate(HOSTILE)]
    records += [evaluation_record("base", 0, 1, True) | {"rewards": {HOSTILE[3]: 1.0}}]
    browser = in_browser(records)
    for number, record in enumerate(records):
        blocks = browser.texts("#detail .block pre")
        assert browser.chosen() == str(number + 1)
        shown = "".join(blocks)
        if record["question"] in HOSTILE:
            assert shown.count(record["question"].replace("\udc80", "\ufffd")) >= 5
        browser.press("j")
    browser.write("#search", "<script>")
    assert browser.text("#count").startswith("3 of 9")
    assert set(browser.texts("#detail mark")) == {"<script>"}
    assert browser.driver.title == f"{browser.text('#title')} · rg_env report"
    made = "main script, main img, main iframe, main style, main [onerror], main a:not([href^='#rollout-'])"
    assert browser.texts(made) == []
    assert browser.requests() == []


def test_content_security_policy_blocks_unescaped_markup(browser: Browser, run_page: Path, tmp_path: Path) -> None:
    """Markup injected into the page runs nothing, and scripts cannot turn text into markup."""
    page = tmp_path / "broken.html"
    hostile = f"{HOSTILE[3]}{HOSTILE[0]}<iframe src='data:,x'></iframe>"
    page.write_text(run_page.read_text(encoding="utf-8").replace("<main>", f"<main>{hostile}"), encoding="utf-8")
    browser.open(page)
    assert browser.driver.title == "tiny on chain_sum · rg_env report"
    assert "TrustedHTML" in browser.run(
        "try { document.body.innerHTML = '<b>'; return 'made'; } catch (error) { return String(error); }"
    )
    assert sum("Content Security Policy" in entry["message"] for entry in browser.logs("browser")) >= 3


def test_keys_move_through_the_list(browser: Browser, evaluation_page: Path) -> None:
    """j and k work everywhere, and arrows, Home, End, g and G in the list; / starts a search and Esc leaves it. The
    selected row stays visible."""
    browser.open(evaluation_page)
    browser.press("j", "j", "k")
    assert browser.chosen() == "2"
    assert "question 0 · 2 of 16" in browser.text("#detail header")
    browser.press("/", "j")
    browser.settle()
    assert browser.focus() == "search"
    assert browser.chosen() == "None", "keys typed into a field are not commands, and no question has a j"
    browser.press(Keys.BACKSPACE, "c", "a", "t", Keys.ESCAPE)
    browser.settle()
    assert (browser.focus(), browser.run("return search.value")) == ("list", "cat"), "the search stays"
    browser.press("/", Keys.BACKSPACE, Keys.ENTER)
    browser.settle()
    assert (browser.focus(), browser.run("return search.value"), browser.chosen()) == ("list", "", "2")
    for key, row in {Keys.ARROW_DOWN: "3", Keys.ARROW_UP: "2", Keys.HOME: "1", Keys.END: "16", "g": "1"}.items():
        browser.press(key)
        assert browser.chosen() == row
    browser.press("G", "j")
    assert browser.chosen() == "16"
    place = "const row = document.getElementById('row-15').getBoundingClientRect(), box = list.getBoundingClientRect()"
    assert browser.run(f"{place}; return row.bottom <= box.bottom + 1 && row.top >= box.top")
    browser.press(Keys.ENTER)
    assert browser.focus() == "detail"
    browser.press("?")
    assert browser.run("return help.open") is True
    browser.press(Keys.ESCAPE)
    assert browser.run("return help.open") is False


def test_focus_is_visible_and_every_control_has_a_name(browser: Browser, evaluation_page: Path) -> None:
    """Tab reaches every control and outlines it; fields, buttons and images have accessible names."""
    browser.open(evaluation_page)
    outlines = {}
    for _ in range(40):
        browser.press(Keys.TAB)
        outlines[browser.focus()] = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert set(outlines.values()) <= {"solid", "auto"}, outlines
    fields = {"theme", "help-open", "search", "measure", "low", "order", "compare", "outcome", "list", "detail"}
    assert fields <= set(outlines)
    nodes = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [(n["role"]["value"], n.get("name", {}).get("value")) for n in nodes if not n["ignored"] and "role" in n]
    roles = {"button", "combobox", "textbox", "searchbox", "spinbutton", "listbox", "option", "img", "link", "dialog"}
    assert [role for role, name in named if role in roles and not name] == []
    assert sum(role == "listbox" for role, _ in named) == 1


def test_filters_select_rollouts(browser: Browser, evaluation_page: Path) -> None:
    """Model, verdict, score and text filters work alone and combined; the count is shown, and a button resets all
    filters."""
    browser.open(evaluation_page)
    assert browser.text("#count") == "16"
    browser.choose("[data-facet=model]", "trained")
    assert browser.text("#count") == "8 of 16"
    browser.choose("[data-facet=status]", "wrong")
    assert browser.text("#count") == "2 of 16"
    assert {line[:7] for line in browser.texts("#list .place")} == {"trained"}
    assert browser.texts("#list .mark") == ["✗", "✗"]
    browser.click("reset")
    assert (browser.text("#count"), browser.focus()) == ("16", "list")
    browser.choose("#measure", "reward")
    browser.write("#low", "0.5")
    assert browser.text("#count") == "9 of 16"
    browser.write("#search", "about CAT 3")
    assert browser.text("#count") == "3 of 16"
    assert browser.texts("#detail mark") == ["about cat 3", "about cat 3"]
    browser.write("#search", ".*")
    assert (browser.text("#count"), browser.text("#detail")) == ("0 of 16", "No rollout matches.")
    browser.click("reset")
    browser.choose("#order", "reward down")
    values = [float(value) for value in browser.texts("#list .value")]
    assert len(values) > 9
    assert values[:9] == [1.0] * 9


def test_two_models_are_side_by_side(browser: Browser, evaluation_page: Path) -> None:
    """Cards show the answers to one question with the same number, in the order of the models; ] shows the next one."""
    browser.open(evaluation_page)
    assert browser.texts(".card header h4") == ["base · #0", "trained · #0"]
    assert browser.texts(".card .reasoning pre") == ["base thinks about cat 0.", "trained thinks about cat 0."]
    assert browser.texts(".card .verdict") == ["✗ wrong", "✓ right"]
    assert browser.texts(".asked .block pre") == ["How many legs have 0 cats?", "0"]
    browser.press("]")
    assert browser.texts(".card header h4") == ["base · #0", "trained · #1"]
    browser.press("G")
    assert browser.texts(".card header h4") == ["base · #1", "trained · #1"], "the chosen one is trained's"
    assert browser.texts(".card.chosen header h4") == ["trained · #1"]
    browser.choose("[data-facet=model]", "trained")
    for outcome, count in {"better": "4 of 16", "worse": "1 of 16"}.items():
        browser.choose("#outcome", outcome)
        assert browser.text("#count") == count
    assert browser.texts(".card .verdict") == ["✓ right", "✗ wrong"]
    browser.choose("#compare", "")
    assert (browser.text("#count"), len(browser.texts(".card"))) == ("8 of 16", 1)


def test_before_and_after_are_side_by_side(browser: Browser, run_page: Path) -> None:
    """Cards show the same question at the first and last step; sampled and greedy rollouts are compared separately."""
    browser.open(run_page)
    browser.choose("[data-facet=step]", "4")
    browser.choose("[data-facet=source]", "evaluation")
    assert browser.texts(".card header h4") == ["step 0 · #0", "step 4 · #0"]
    assert [text.split(".")[0] for text in browser.texts(".card .completion pre")] == [
        "It is 3, after 0 steps",
        "It is 2, after 4 steps",
    ]
    browser.choose("[data-facet=draw]", "greedy")
    assert browser.texts(".card .completion pre") == ["greedy at 0", "greedy at 4"]
    browser.click("reset")
    browser.choose("[data-facet=source]", "training")
    assert browser.texts(".card header h4") == ["training, step 1"], "training has each question once"


def test_light_dark_and_on_paper(browser: Browser, evaluation_page: Path) -> None:
    """The page follows the system's color scheme until t overrides it, and text has enough contrast in both. On paper,
    tables, bars and the selected rollout are shown without the controls."""

    def media(name: str, value: str) -> None:
        given = {"media": value} if name == "media" else {"features": [{"name": name, "value": value}]}
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", given)

    def look(scheme: str) -> str:
        media("prefers-color-scheme", scheme)
        ground, ink = browser.run(
            "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color].map((c) => "
            "c.match(/[0-9.]+/g).slice(0, 3).map(Number).reduce((a, b) => a + b))"
        )
        assert abs(ground - ink) > 400
        return "light" if ground > ink else "dark"

    try:
        browser.open(evaluation_page)
        for theme, looks in {"auto": ["light", "dark"], "light": ["light"] * 2, "dark": ["dark"] * 2}.items():
            assert browser.text("#theme") == f"Theme: {theme}"
            assert [look("light"), look("dark")] == looks
            browser.press("t")
        browser.press("t", "t")  # dark, although paper is always light
        media("media", "print")
        assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        seen = "return [...document.querySelectorAll(arguments[0])].map((e) => e.checkVisibility())"
        assert browser.run(seen, "#list, #filters, .tools") == [False] * 3
        assert all(browser.run(seen, "table, #bars svg, .card"))
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [], "media": ""})


def test_on_a_phone_filters_are_folded(browser: Browser, run_page: Path) -> None:
    """The page does not scroll sideways, the list is above the rollout, and a button opens the filters."""
    try:
        size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.open(run_page)
        browser.settle()
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.run("return list.getBoundingClientRect().bottom <= detail.getBoundingClientRect().top + 1")
        fields = "[...document.querySelectorAll('#filters select, #search')]"
        seen = f"return {fields}.filter((field) => field.checkVisibility()).length"
        assert browser.run(seen) == 1
        browser.click("more")
        assert browser.run(seen) > 6
        assert browser.run("return more.getAttribute('aria-expanded')") == "true"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_each_rollout_has_a_url(browser: Browser, evaluation_page: Path) -> None:
    """The URL follows the selection, and opening it selects the rollout, even one that a filter hides."""
    browser.open(evaluation_page)
    assert "#" not in browser.driver.current_url
    browser.press("j", "j")
    address = browser.driver.current_url
    assert address.endswith("#rollout-2")
    assert browser.run("return document.querySelector('#detail header a').href") == address
    question = browser.texts(".asked .block pre")[0]
    browser.driver.get("about:blank")
    browser.driver.get(address)
    assert (browser.chosen(), browser.texts(".asked .block pre")[0]) == ("3", question)
    browser.choose("[data-facet=model]", "trained")
    browser.run("location.hash = '#rollout-1'")
    browser.settle()
    assert (browser.text("#count"), browser.chosen()) == ("16", "2")
    browser.run("location.hash = '#rollout-999'")
    browser.settle()
    assert browser.chosen() == "2"


def test_ten_thousand_rollouts_are_rendered_as_a_few_rows(in_browser: Callable[..., Browser]) -> None:
    """Only visible rows are in the document, and all can be reached. A filter for many steps takes a range instead of
    offering a list."""
    browser = in_browser([evaluation_record("base", n, 0, n % 3 == 0, step=n % 2000) for n in range(10_000)])
    assert browser.texts("[data-facet=step]") == []
    assert browser.text("#count") == "10,000"
    elements = browser.run("return document.querySelectorAll('*').length")
    assert elements < 1000
    browser.run("list.scrollTop = 0.37 * list.scrollHeight")
    browser.settle()
    assert 10 <= len(browser.texts(".row")) < 60
    browser.press("G")
    assert browser.chosen() == "10000"
    assert browser.texts(".asked .block pre")[0] == "How many legs have 9999 cats?"
    browser.write("#search", "have 7777 cats")
    assert browser.text("#count") == "1 of 10,000"
    browser.write("#search", "")
    browser.choose("#measure", "step")
    browser.write("#low", "1998")
    assert browser.text("#count") == "10 of 10,000"


def test_many_tasks_and_models_fit(browser: Browser, tmp_path: Path) -> None:
    """Twenty models on thirty tasks, all with long names, have a bar each, and nothing is wider than the page."""
    records = [
        evaluation_record(f"organisation/a-rather-long-name-of-a-model-{m:02}", n, 0, (m + n) % 3 == 0)
        for m in range(20)
        for n in range(3)
    ]
    results = results_of_records(records)
    (task,) = results.tasks.values()
    tasks = {f"a_task_with_a_long_name_{number:02}": task for number in range(30)}
    (tmp_path / "results_all_tasks_1.json").write_text(results.model_copy(update={"tasks": tasks}).model_dump_json())
    browser.open(write_report(tmp_path).file)
    WebDriverWait(browser.driver, 10).until(lambda _: len(browser.texts("#bars rect.bar")) == 600)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_pages_with_little_data_are_shown(browser: Browser, tmp_path: Path) -> None:
    """A run with a single evaluation and results without rollouts are shown without errors."""
    run = write_run(tmp_path / "run", [evaluated(0, [[True], [False], [True]])])
    for name in ("metrics.jsonl", "rollouts.jsonl", "train_results.json"):
        (run / name).unlink()
    browser.open(write_report(run).file)
    WebDriverWait(browser.driver, 10).until(lambda _: browser.texts("#charts .plot svg"))
    assert "NaN" not in browser.run("return document.querySelector('#charts').outerHTML")
    assert browser.text("#count") == "6"
    (tmp_path / "results_x.json").write_text(results_of_records(evaluation_records()).model_dump_json())
    browser.open(write_report(tmp_path / "results_x.json").file)
    assert browser.text("#detail") == "No rollout matches."
    browser.press("j", "k", "G", "]")
    assert "no rollouts to show" in browser.text("#notes")
