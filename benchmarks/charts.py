"""Our charts against uPlot: bytes on the page, time to draw a run, what a screen reader finds.

Covers: `python -m benchmarks.charts`, which fetches uPlot with npm and draws with both in headless Chromium.
Does not cover: reading a run's events down to the buckets that a page is given (recording_cost.py).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, machine
from tests.integration.watch_browser import Browser

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "penstock/watch/page"
OURS = ("format.js", "axis.js", "charts.js")
BUCKETS, POINTS, ROUNDS = 512, 1_000_000, 7

SERIES = """
function series(n) {
  const x = new Array(n), v = new Array(n);
  for (let i = 0; i < n; i += 1) { x[i] = i; v[i] = Math.sin(i / n * 60) + ((i * 7919) % 101) / 200; }
  return { x, v };
}
"""
DRAW = {
    "ours": """
        const chart = new Chart({ title: "loss", format: short }, new Cursor());
        document.body.replaceChildren(chart.node);
        chart.set({ lines: [{ name: "loss", color: "--c1", ...given }], end: given.x[given.x.length - 1] });
    """,
    "uPlot": """
        document.body.replaceChildren();
        const lines = [{}, { label: "loss", stroke: "red" }];
        const shape = { width: 1000, height: 170, scales: { x: { time: false } }, series: lines };
        new uPlot(shape, [given.x, given.v], document.body);
    """,
}
READ = """
    const said = [...document.querySelectorAll("[aria-label],figcaption,button,summary,td,text")];
    return { focusable: document.querySelectorAll("[tabindex],button,summary").length,
             labels: said.filter((node) => (node.getAttribute("aria-label") || node.textContent).trim()).length };
"""


def scripts(name: str, uplot: Path) -> list[Path]:
    """The JavaScript that draws."""
    return [PAGE / part for part in OURS] if name == "ours" else [uplot / "uPlot.iife.min.js"]


def page(name: str, uplot: Path) -> str:
    """A page that holds the drawing code and a function to call it."""
    style = PAGE / "page.css" if name == "ours" else uplot / "uPlot.min.css"
    code = "\n".join(path.read_text() for path in scripts(name, uplot))
    # A frame is waited for, so that layout and painting are counted with the script.
    run = f"function draw(given) {{ {DRAW[name]} }}\n{SERIES}"
    return f"<!doctype html><style>{style.read_text()}</style><body></body><script>{code}\n{run}</script>"


def drawn_ms(browser: Browser, count: int) -> float:
    """Milliseconds from the data to the frame that shows it."""
    browser.js(
        f"window.took = null; const given = series({count}), began = performance.now(); draw(given);"
        "requestAnimationFrame(() => setTimeout(() => { window.took = performance.now() - began; }));"
    )
    return float(browser.wait("window.took"))


def main() -> None:
    """Measure both by turns, print, and keep the result."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "uplot@1.6.32"], cwd=folder, check=True, capture_output=True)
        subprocess.run(["tar", "xzf", "uplot-1.6.32.tgz"], cwd=folder, check=True)
        uplot = Path(folder) / "package" / "dist"
        took: dict[tuple[str, int], list[float]] = {}
        for _ in range(ROUNDS):
            for name in DRAW:
                path = Path(folder) / f"{name}.html"
                path.write_text(page(name, uplot))
                with Browser() as browser:
                    browser.open(path.as_uri())
                    for count in (BUCKETS, POINTS):
                        took.setdefault((name, count), []).append(drawn_ms(browser, count))
                    browser.js(f"draw(series({BUCKETS}))")
                    found[name] = {"readable": browser.js(READ)}
        for name in DRAW:
            found[name]["nbytes"] = sum(path.stat().st_size for path in scripts(name, uplot))
            found[name]["ms"] = {str(n): round(statistics.median(took[name, n]), 1) for n in (BUCKETS, POINTS)}
    (RESULTS / "charts.json").write_text(json.dumps({"machine": machine(), "found": found}, indent=1) + "\n")
    (RESULTS / "charts.md").write_text(table(found))
    print(table(found))


def table(found: dict[str, Any]) -> str:
    """The result in words."""
    where = machine()
    rows = [
        f"| {name} | {one['nbytes'] / 1e3:.0f} KB | {one['ms'][str(BUCKETS)]} | {one['ms'][str(POINTS)]} "
        f"| {one['readable']['labels']} | {one['readable']['focusable']} |"
        for name, one in found.items()
    ]
    counts = f"{BUCKETS} buckets, ms | {POINTS:,} points, ms"
    head = f"| | code | {counts} | texts a screen reader finds | places the keyboard reaches |"
    return "\n".join([
        "# Charts of our own against uPlot",
        "",
        f"Headless Chromium, from the data to the painted frame, median of {ROUNDS} fresh windows. A page is never",
        f"given more than {BUCKETS} buckets a series; a million points are drawn here only to compare.",
        "",
        f"{where['cores']} cores, {where['cpu']}; {where['date']}.",
        "",
        head,
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
