"""The pictures in docs/images, taken of real trainings in a real Chromium.

python -m tests.integration.watch_screenshots DATA RUNS OUT: trains on a table with a column "label" three times, into
RUNS (runs that are there already are kept), the last time with many epochs to be photographed while it runs, and
writes PNG files to OUT.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.watch.live.start import start_watch
from penstock.watch.report import report_data, write_report
from tests.integration.watch_browser import Browser

FINISHED = {"mlp": ("0.001", "3"), "mlp-fast": ("0.02", "3")}
"""Runs to compare: learning rate and epochs."""
LIVE, LIVE_EPOCHS = "mlp-long", 40
DRAWN = "document.documentElement.dataset.drawn"
SMALL, LARGE = (1360, 1000), (1360, 1500)


def train(data: Path, out: Path, rate: str, epochs: str) -> subprocess.Popen[bytes]:
    words = [str(data), "--out", str(out), "--memory", "700MB", "--batch", "256", "--backend", "jax", "--no-forecast"]
    words += ["--learning-rate", rate, "--epochs", epochs]
    return subprocess.Popen([sys.executable, "-m", "penstock", "train", *words], stdout=subprocess.DEVNULL)


def in_both(browser: Browser, out: Path, name: str, size: tuple[int, int]) -> None:
    """One picture in light and one in dark colours."""
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        browser.screenshot(out / f"{name}-{scheme}.png", *size)


def photograph_live(browser: Browser, data: Path, runs: Path, out: Path) -> None:
    """The page of a run that is under way, after its second epoch."""
    training = train(data, runs / LIVE, "0.001", str(LIVE_EPOCHS))
    try:
        with start_watch(runs) as page:
            browser.open(page.url)
            browser.wait(DRAWN, 300)
            link = f"[...document.querySelectorAll('nav a')].find(a => a.textContent === '{LIVE}')"
            browser.wait(link, 600)
            browser.js(f"{link}.click()")
            browser.wait(f"/^[3-9] of {LIVE_EPOCHS}/.test(document.querySelector('.tile dd')?.textContent)", 900)
            in_both(browser, out, "live", SMALL)
    finally:
        training.send_signal(signal.SIGINT)
        training.wait()


def photograph_compared(browser: Browser, runs: Path, out: Path) -> None:
    with start_watch(runs) as page:
        browser.open(page.url)
        browser.wait(DRAWN, 300)
        while browser.js("return document.querySelectorAll('nav input:not(:checked)').length"):
            browser.js("document.querySelector('nav input:not(:checked)').click()")
        browser.wait("document.querySelector('h1').textContent === 'Runs compared'")
        browser.wait("document.querySelectorAll('figure path.line').length >= 8")
        browser.prefer("light")
        browser.screenshot(out / "compare-light.png", *SMALL)


def main(data: Path, runs: Path, out: Path) -> None:
    for name, (rate, epochs) in FINISHED.items():
        if not (runs / name / "metrics.json").exists() and train(data, runs / name, rate, epochs).wait():
            raise SystemExit(f"the run {name} failed: {runs / name / 'log.txt'}")
    os.environ["XDG_STATE_HOME"] = str(runs / ".state")
    with Browser() as browser:
        browser.open(write_report(report_data(runs / "mlp"), runs / "report.html").resolve().as_uri())
        browser.wait(DRAWN)
        in_both(browser, out, "report", LARGE)
        photograph_live(browser, data, runs, out)
        photograph_compared(browser, runs, out)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
