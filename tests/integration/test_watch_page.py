"""The report and the live page in a real Chromium: they draw, move, come back, and can be used without a mouse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.watch.chart_data import draw
from penstock.watch.digest import Digest
from penstock.watch.live.start import start_watch
from penstock.watch.report import write_report
from tests.integration.watch_browser import Browser, find_chromium
from tests.unit.watch.runs import START_T, event, progress, sample, start, training, write_long_run, write_run

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="chromium and chromium-driver are not installed")

DRAWN = "document.documentElement.dataset.drawn"


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture(autouse=True)
def fresh(browser, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    browser.prefer("light")
    browser.errors()
    yield
    browser.open("about:blank")


def text(browser, selector: str) -> str:
    return browser.js("const e = document.querySelector(arguments[0]); return e.innerText ?? e.textContent", selector)


def count(browser, selector: str) -> int:
    return browser.js("return document.querySelectorAll(arguments[0]).length", selector)


def steps(browser) -> str:
    return browser.js("return document.querySelector('.tile .sub')?.textContent || ''")


def open_report(browser, tmp_path, chart_data) -> None:
    path = write_report(chart_data, tmp_path / "report.html")
    browser.open(path.as_uri())
    browser.wait(DRAWN)


def chart_data(events):
    digest = Digest()
    for record in events:
        digest.take(record)
    return draw(digest, name="mnist", now_s=START_T)


def test_a_report_draws_everything_from_one_file(browser, tmp_path):
    open_report(browser, tmp_path, chart_data(training(400)))
    browser.wait("document.querySelectorAll('.chart svg path.area').length")
    assert count(browser, "figure path.area") == 6  # holders
    assert count(browser, "figure path.line") == 6  # loss, accuracy, both validations, throughput, waiting
    assert count(browser, ".limit") == 1 and "limit 2 GB" in text(browser, ".limit-text")
    assert count(browser, "path.decision") == browser.js("return document.querySelectorAll('.log li').length") > 15
    assert count(browser, ".stages li") == 4 and count(browser, ".advice li") >= 2
    assert "10 of 10" in text(browser, ".tiles") and "step 400" in text(browser, ".tiles")
    assert "workbench" in text(browser, "main") and text(browser, "h1") == "mnist"
    boxes = browser.js("return [...document.querySelectorAll('path.line,path.area')].map(p => p.getBBox().width)")
    assert min(boxes) > 100
    assert browser.js("return performance.getEntriesByType('resource').length") == 0
    assert browser.errors() == []


@pytest.mark.parametrize(
    "events", [[], [start()], [sample(START_T)], [progress(START_T, 1)], [event(START_T, "x.y", "<b>", text="<i>")]],
    ids=["empty", "started", "one sample", "one step", "unknown"],
)  # fmt: skip
def test_a_report_of_little_is_a_page_too(browser, tmp_path, events):
    open_report(browser, tmp_path, chart_data(events))
    assert count(browser, "figure") == 5 and count(browser, "main b b, main i i") == 0
    assert "NaN" not in text(browser, "main") and "undefined" not in text(browser, "main")
    assert browser.errors() == []


MOST_NODES = 10_000
"""Elements of a page. What a page of so many takes to open is measured by benchmarks/recording_cost.py."""


def test_the_worst_report_is_bounded(browser, tmp_path):
    """Every bucket of every series is full, as after a million steps, and every kind of decision came often."""
    digest = Digest()
    for record in training(300):
        digest.take(record)
    grid = digest.grid
    for index in range(grid.most_buckets):
        for number in range(20):
            grid.add(index * grid.width_s, f"metric:m{number}", 1.23 + index)
        grid.add_memory(index * grid.width_s, 10**9, 2 * 10**9, {f"holder {n}": 10**8 for n in range(12)})
    for number in range(1000):
        digest.take(event(START_T + number, "tune.threads", threads=number, before=1, why="because"))
    path = write_report(draw(digest, name="x"), tmp_path / "report.html")
    assert path.stat().st_size < 4_000_000
    browser.open(path.as_uri())
    browser.wait(DRAWN)
    assert count(browser, "*") < MOST_NODES
    points = browser.js("return [...document.querySelectorAll('path.line')].map(p => p.getAttribute('d').length)")
    assert len(points) >= 20 and max(points) < 100_000
    assert browser.errors() == []


def test_axis_legend_table_and_cross_hair(browser, tmp_path):
    open_report(browser, tmp_path, chart_data(training(400)))
    browser.js("document.querySelector('input[value=steps]').click()")
    assert "400" in browser.js(
        "return [...document.querySelectorAll('figure svg text')].map(t => t.textContent).join(' ')"
    )
    browser.js("document.querySelector('.legend button').click()")
    assert count(browser, "figure path.area") == 5
    assert browser.js("return document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
    browser.js("document.querySelector('figure summary').click()")
    browser.wait("document.querySelectorAll('figure table tbody tr').length > 20")
    heads = browser.js("return [...document.querySelectorAll('figure table th')].map(t => t.textContent)")
    assert heads[:2] == ["Step", "not accounted for"]
    assert browser.errors() == []


def test_numbers_move_while_events_are_appended(browser, tmp_path):
    run = write_run(
        tmp_path / "live", [start(), *(progress(START_T + n, n + 1) for n in range(5)), sample(START_T + 5)]
    )
    with start_watch(tmp_path) as watching:
        browser.open(watching.url)
        browser.wait("document.querySelector('.tile .sub')?.textContent === 'step 5'")
        before = browser.js("return document.querySelector('figure:nth-of-type(1) path.area').getAttribute('d')")
        write_run(run, [*(progress(START_T + n, n + 1) for n in range(5, 40)), sample(START_T + 40, 10**9)])
        browser.wait("document.querySelector('.tile .sub').textContent === 'step 40'")
        assert browser.js("return document.querySelector('path.area').getAttribute('d')") != before
        write_run(run, [event(START_T + 41, "run.death", "supervisor", signal=9, why="killed by the kernel")])
        browser.wait("document.querySelector('.log')?.innerText.includes('killed by the kernel')")
        write_run(run, [event(START_T + 42, "run.end", status="finished", error="")])
        browser.wait("document.querySelector('.pill').textContent === 'finished'")
        assert text(browser, "#link") == "Connected" and browser.errors() == []
    browser.wait("document.getElementById('link').textContent.startsWith('The run is over')")
    assert "step 40" in text(browser, ".tiles")  # what was drawn stays


def serve(folder, port: int) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "penstock", "watch", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return process, process.stdout.readline().strip()


def test_the_page_comes_back_after_the_server_was_killed(browser, tmp_path):
    run = write_run(tmp_path / "live", [start(), *(progress(START_T + n, n + 1) for n in range(200))])
    process, url = serve(tmp_path, 0)
    try:
        browser.open(url)
        browser.wait("document.querySelector('.tile .sub')?.textContent === 'step 200'")
        process.kill()
        process.communicate()
        browser.wait("document.getElementById('link').textContent.startsWith('Connection lost')")
        write_run(run, [progress(START_T + n, n + 1) for n in range(200, 230)])
        # Another user's server, or one after a reboot with a fresh home: the old page's cookie is not known there.
        (Path(os.environ["XDG_STATE_HOME"]) / "penstock" / "watch-token").unlink()
        process, again = serve(tmp_path, int(url.split(":")[2].split("/")[0]))
        assert again != url  # a new token at each start: the old page is not let in again, its new address is
        browser.wait("document.getElementById('link').textContent.includes('penstock watch')")
        browser.open(again)
        browser.wait("document.querySelector('.tile .sub')?.textContent === 'step 230'")
        assert text(browser, "#link") == "Connected"
        points = browser.js("return document.querySelector('path.line').getAttribute('d').split('L').length")
        assert points > 200
        known = ("net::ERR_", "403")  # no server, one that goes in mid-answer, and the old page with its old token
        assert [error for error in browser.errors() if not any(word in error for word in known)] == []
    finally:
        process.kill()
        process.communicate()


def test_several_runs_are_listed_and_compared(browser, tmp_path):
    for name in ("first", "second", "third"):
        write_run(tmp_path / name, training(60))
    with start_watch(tmp_path) as watching:
        browser.open(watching.url)
        browser.wait(DRAWN)
        assert count(browser, "nav li") == 3
        browser.js("document.querySelectorAll('nav input:not(:checked)')[0].click()")
        browser.wait("document.querySelector('h1').textContent === 'Runs compared'")
        browser.wait("document.querySelectorAll('figure path.line').length === 8")
        assert count(browser, "main section table tbody tr") == 2
        browser.js(
            "const s = document.querySelector('select'); s.value = 'val_loss'; s.dispatchEvent(new Event('change'))"
        )
        assert text(browser, "figure h2") == "val_loss"
        browser.js("document.querySelectorAll('nav a')[2].click()")
        browser.wait("document.querySelector('h1').textContent === document.querySelectorAll('nav a')[2].textContent")
        assert browser.errors() == []


def focused(browser) -> dict:
    return browser.js(
        "const e = document.activeElement, s = getComputedStyle(e);"
        "return {tag: e.tagName, role: e.getAttribute('role'),"
        "name: e.getAttribute('aria-label') || e.innerText || e.value,"
        "seen: s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2, body: e === document.body}"
    )


def test_the_keyboard_reaches_everything(browser, tmp_path):
    for name in ("first", "second"):
        write_run(tmp_path / name, training(60))
    with start_watch(tmp_path) as watching:
        browser.open(watching.url)
        browser.wait(DRAWN)
        reached = []
        for _ in range(70):
            browser.press("Tab")
            now = focused(browser)
            if now["body"]:
                break
            reached.append(now)
        assert all(stop["seen"] or stop["tag"] in ("INPUT", "SUMMARY") for stop in reached)
        charts = [stop["name"] for stop in reached if stop["role"] == "group"]
        assert [name.split(".")[0] for name in charts][:5] == [
            "Memory by holder",
            "Loss",
            "Metrics",
            "Throughput",
            "Waiting for data",
        ]
        assert charts[5].startswith("Timeline of")
        tags = [stop["tag"] for stop in reached]
        assert tags.count("A") == 3 and tags.count("INPUT") == 3 and tags.count("SUMMARY") == 5  # skip link, two runs
        assert tags.count("BUTTON") == browser.js("return document.querySelectorAll('.legend button').length")
        assert all(stop["name"] for stop in reached)
        assert browser.errors() == []


def test_arrow_keys_read_a_chart_aloud(browser, tmp_path):
    open_report(browser, tmp_path, chart_data(training(60)))
    browser.js("document.querySelector('.chart').focus()")
    browser.press("Left")
    browser.press("Left")
    spoken = browser.js("return document.querySelector('figure [aria-live]').textContent")
    assert " s: not accounted for" in spoken and "optimizer 380 MB" in spoken
    browser.js("document.querySelector('[aria-roledescription=timeline]').focus()")
    browser.press("Left")
    assert "The run finished" in browser.js("return document.querySelector('[aria-label=Decisions] p').textContent")
    browser.press("Left")
    assert "Training is complete" in browser.js("return document.querySelector('[aria-label=Decisions] p').textContent")


def test_landmarks_and_names_for_screen_readers(browser, tmp_path):
    for name in ("first", "second"):
        write_run(tmp_path / name, training(60))
    with start_watch(tmp_path) as watching:
        browser.open(watching.url)
        browser.wait(DRAWN)
        nodes = browser.cdp("Accessibility.getFullAXTree")["nodes"]
        told = [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]
        roles = [role for role, _ in told]
        for landmark in ("banner", "navigation", "main", "contentinfo"):
            assert roles.count(landmark) == 1, landmark
        assert ("navigation", "Runs") in told and roles.count("heading") >= 8
        for role in ("button", "checkbox", "radio", "link", "region", "combobox"):
            assert all(name.strip() for found, name in told if found == role), role
        assert browser.js("return document.documentElement.lang") == "en"


CONTRASTS = """
const linear = (v) => (v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4);
const light = (color) => {
  const [r, g, b] = color.match(/[0-9.]+/g).map(Number).map(linear);
  return .2126 * r + .7152 * g + .0722 * b;
};
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const color = getComputedStyle(e).backgroundColor;
    if (!color.endsWith(', 0)') && color !== 'transparent') return color;
  }
  return 'rgb(255, 255, 255)';
};
const found = [];
for (const e of document.querySelectorAll('body *')) {
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
  if (['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(e.tagName)) continue;
  const style = getComputedStyle(e);
  const a = light(e instanceof SVGElement ? style.fill : style.color), b = light(ground(e));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  found.push([ratio, e.tagName + '.' + e.getAttribute('class'), e.textContent.slice(0, 40)]);
}
return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_light_and_dark(browser, tmp_path, scheme):
    browser.prefer(scheme)
    open_report(browser, tmp_path, chart_data(training(100)))
    ground = browser.js("return getComputedStyle(document.body).backgroundColor")
    dark = sum(int(part) for part in ground.strip("rgb()").split(",")) < 150
    assert dark is (scheme == "dark")
    contrasts = browser.js(CONTRASTS)
    assert len(contrasts) > 100
    assert [found for found in contrasts if found[0] < 4.5] == []


def test_a_small_screen_needs_no_sideways_scrolling(browser, tmp_path):
    browser.cdp("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
    try:
        open_report(browser, tmp_path, chart_data(training(100)))
        assert browser.js("return document.documentElement.scrollWidth") <= 390
    finally:
        browser.cdp("Emulation.clearDeviceMetricsOverride")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_report_of_a_million_steps(browser, tmp_path):
    """From a real file of 1.5 million events: little memory to make it, and a page no larger than other pages."""
    run = write_long_run(tmp_path / "million", 1_000_000).parent
    script = (
        "import resource, sys\n"
        "from penstock.watch.report import report_data, write_report\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "path = write_report(report_data(sys.argv[1]), sys.argv[2])\n"
        "print(path.stat().st_size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    out = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-c", script, str(run), str(out)], capture_output=True, text=True, check=True
    )
    nbytes, kilobytes = (int(part) for part in done.stdout.split())
    assert nbytes < 1_000_000 and kilobytes < 60_000
    browser.open(out.as_uri())
    browser.wait(DRAWN)
    assert count(browser, "*") < MOST_NODES
    assert "1,000,000" in text(browser, ".tiles") or "999,999" in text(browser, ".tiles")
