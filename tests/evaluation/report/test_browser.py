"""Tests of reports in headless Chromium: rendering, keyboard control, accessibility and security."""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_samples import (
    HOSTILE,
    evaluation_record,
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
    assert values[:9] == [1.1] * 9


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


def test_filters_are_in_the_url(browser: Browser, evaluation_page: Path) -> None:
    """Opening the URL restores filters and rollout; filters at their initial values are left out."""
    browser.open(evaluation_page)
    browser.choose("[data-facet=model]", "trained")
    browser.choose("#outcome", "better")
    browser.write("#low", "0.5")
    browser.choose("#order", "reward down")
    browser.press(Keys.ESCAPE, "j")
    address, rows = browser.driver.current_url, browser.texts("#list .name")
    assert re.fullmatch(
        r".*#rollout-\d+&model=trained&low=0.5&order=reward\+down&outcome=better&measure=score", address
    )
    browser.driver.get("about:blank")
    browser.driver.get(address)
    assert (browser.text("#count"), browser.texts("#list .name"), browser.chosen()) == ("4 of 16", rows, "2")
    browser.run("location.hash = '#rollouts&search=nothing+like+this'")
    browser.settle()
    assert browser.text("#count") == "0 of 16"
    browser.click("reset")
    assert re.search(r"html#rollout-\d+$", browser.driver.current_url)


def test_the_list_shows_where_questions_start_to_differ(in_browser: Callable[..., Browser]) -> None:
    """A long beginning that all questions of a task share is left out; other questions are shown from their start."""
    shared = "Your task is to count the legs of some animals. How many legs have "
    records = [evaluation_record("base", n, 0, True, question=f"{shared}{n} cats and a dog?") for n in range(2)]
    own = ["Ann has 3 apples and eats one. How many are left?", "Bob has 4 pears. How many are left?"]
    records += [evaluation_record("base", 2 + n, 0, True, task="own", question=text) for n, text in enumerate(own)]
    browser = in_browser(records)
    assert browser.texts("#list .name") == ["…0 cats and a dog?", "…1 cats and a dog?", *own]
    assert browser.texts("#list .value") == ["1.10"] * 4
    assert browser.texts("#list .line")[2] == "base · #0own"


def test_the_answer_is_highlighted_in_the_reply(in_browser: Callable[..., Browser]) -> None:
    """Only the extracted answer is, in the last tags or as a word of its own, also within a search match."""
    replies = {"12": "12 or <answer>13</answer>? <answer> 12 </answer>", "7": "It is 77, no: 7.", "9": "99 99"}
    records = [evaluation_record("base", n, 0, True, extracted=answer, completion=reply, reasoning=None)
               for n, (answer, reply) in enumerate(replies.items())]  # fmt: skip
    browser = in_browser(records)
    before = "const one = document.querySelector('.completion .answer'); return one && one.previousSibling.textContent"
    for expected in ("12 or <answer>13</answer>? <answer> ", "It is 77, no: ", None):
        assert browser.run(before) == expected
        browser.press("j")


def test_hidden_characters_are_visible_and_have_no_effect(in_browser: Callable[..., Browser]) -> None:
    """Their codes are shown in their place. Joiners in emoji and in words of other scripts are left alone."""
    text = "a\u202eb\u200bc\ufeff \u2066d\r\n\x1b e\u200df \u0646\u0645\u06cc\u200c\u062f \U0001f469\u200d\U0001f467"
    browser = in_browser([evaluation_record(f"x{text[1]}y", 0, 0, True, question=text)])
    codes = "return [...document.querySelectorAll(`${arguments[0]} .code`)].map((e) => e.dataset.code)"
    expected = ["U+202E", "U+200B", "U+FEFF", "U+2066", "U+001B", "U+200D"]
    assert browser.run(codes, ".asked pre") == browser.run(codes, "#list .name") == expected
    assert browser.texts(".asked .block pre")[0] == text, "a search finds the text, and a copy has it"
    assert "\u202e" not in browser.run("return document.querySelector('.asked pre').innerText")
    assert browser.run(codes, "#tables") == ["U+202E"]


def test_training_rollouts_have_no_unknown_facets(browser: Browser, run_page: Path) -> None:
    browser.open(run_page)
    options = browser.texts("#facets option")
    assert {"training (28)", "sampled (20)", "greedy (8)"} & {*options} == {"sampled (20)", "greedy (8)"}
    assert not [option for option in options if "unknown" in option]


def test_an_index_links_to_its_runs(browser: Browser, tmp_path: Path) -> None:
    """Names of folders are text, and the links lead to the runs' pages, which have no section without content."""
    name = "javascript:alert(1)"
    write_run(tmp_path / name)
    browser.open(write_report(tmp_path).file)
    assert browser.run("return rollouts.hidden")
    assert browser.run("return document.querySelector('#tables a').protocol") == "file:"
    browser.driver.find_element("link text", name).click()
    browser.settle()
    assert browser.texts("#verdicts .headline")[0].replace("\u00a0", " ").startswith("0.17 → 0.50, p = 0.500, n = 3")


def test_a_phone_shows_the_accuracy_and_scrolls_only_the_page(
    browser: Browser, evaluation_page: Path, in_browser: Callable[..., Browser]
) -> None:
    """The first columns fit a phone, the selected rollout has its full height, and shortened names keep their ends."""
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        browser.open(evaluation_page)
        assert browser.texts("#tables thead th")[:3] == ["task", "model", "accuracy"]
        head = "const r = new Range(); r.selectNodeContents(document.querySelectorAll('#tables thead th')[2]); "
        assert browser.run(head + "return r.getBoundingClientRect().right") <= 390
        assert browser.run("const d = document.querySelector('.detail'); return d.scrollHeight <= d.clientHeight + 1")
        assert browser.run("return document.documentElement.scrollWidth") == 390
        names = [f"outputs/a-run-with-a-name/checkpoint-{step}" for step in (5, 10)]
        in_browser([evaluation_record(name, 0, 0, True) for name in names])
        shown = "return [...document.querySelectorAll('#bars .tick.end')].map((each) => each.firstChild.textContent)"
        WebDriverWait(browser.driver, 30).until(lambda _: browser.run(shown))
        assert sorted(text.split("…")[1] for text in browser.run(shown)) == ["int-10", "oint-5"]
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


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
