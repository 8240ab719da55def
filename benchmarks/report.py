"""Measure the time that a browser takes to open a report with 10,000 rollouts.

    .venv/bin/python benchmarks/report.py                       # needs Chromium, chromedriver and selenium
    .venv/bin/python benchmarks/report.py --check               # exit code 1 if the median is 2 s or more

The report covers two models and 1,250 questions, with four answers of about 1,300 characters per model and question.
The time is measured in headless Chromium, from the start of navigation to the second frame after the page's `load`
event. By then, the list and the selected rollout have been drawn and respond to keys. For each measurement, the browser
has a fresh profile, and the file is in the page cache. The script also prints the time to write the report.
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODELS, TASKS, QUESTIONS, ANSWERS = ("base", "trained"), 5, 250, 4
TARGET_S = 2.0
_TEXT = "first we count the legs of each animal then add 12 and 48 so that the sum is 60 wait check again = x + 4"
_DRAWN = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())))"


def write_rollouts(file: Path, seed: int = 0) -> int:
    """Write rollouts in the format of `rg-env eval`, and return their number."""
    draw = random.Random(seed)
    count = 0
    with file.open("w", encoding="utf-8") as lines:
        for model in MODELS:
            for problem in range(TASKS * QUESTIONS):
                for rollout in range(ANSWERS):
                    correct = draw.random() < (0.4 if model == "base" else 0.7)
                    answer = str(problem) if correct else str(draw.randrange(1000))
                    work = " ".join(draw.choices(_TEXT.split(), k=draw.randrange(150, 400)))
                    record: dict[str, Any] = {
                        "model": model,
                        "task": f"task_{problem // QUESTIONS}",
                        "problem": problem,
                        "rollout": rollout,
                        "question": f"How many legs have {problem} birds, of which one has lost one, and a snake?",
                        "answer": str(problem),
                        "completion": f"{work}\n<answer>{answer}</answer>",
                        "completion_tokens": len(work) // 4,
                        "truncated": False,
                        "score": float(correct),
                        "correct": correct,
                        "reward": 1.1 if correct else 0.1,
                        "rewards": {"correctness": float(correct), "format": 1.0},
                        "status": "correct" if correct else "wrong",
                        "seconds": 1.5,
                    }
                    lines.write(json.dumps(record) + "\n")
                    count += 1
    return count


def open_page(page: Path, times: int) -> list[float]:
    """Open the report `times` times, and return how long each opening took, in seconds."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        sys.exit("error: Chromium or chromedriver is missing; run apt-get install chromium chromium-driver")
    found = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as profile:
            options = webdriver.ChromeOptions()
            options.binary_location = browser
            quiet = ("quic", "background-networking", "component-update", "sync", "gpu")
            for flag in ("--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)):
                options.add_argument(flag)
            options.add_argument(f"--user-data-dir={profile}")
            window = webdriver.Chrome(options=options, service=Service(driver))
            try:
                window.get("about:blank")
                window.get(page.absolute().as_uri())
                found.append(window.execute_async_script(_DRAWN) / 1000)
                assert window.execute_script("return document.documentElement.dataset.ready") == "true"
            finally:
                window.quit()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--check", action="store_true", help="exit code 1 if the median is 2 s or more")
    options = parser.parse_args()

    from rg_env.evaluation.report import write_report

    with tempfile.TemporaryDirectory() as folder:
        count = write_rollouts(Path(folder) / "rollouts.jsonl")
        start = time.perf_counter()
        report = write_report(Path(folder), limit=count)
        seconds = time.perf_counter() - start
        print(f"writing {count:,} rollouts: {seconds:.2f} s, {report.file.stat().st_size / 1e6:.1f} MB")
        found = open_page(report.file, options.times)
    print(f"opening: median {statistics.median(found):.2f} s, {min(found):.2f} to {max(found):.2f}, of {options.times}")
    if options.check and statistics.median(found) >= TARGET_S:
        sys.exit(f"error: the median is not below {TARGET_S} s")


if __name__ == "__main__":
    main()
