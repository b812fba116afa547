"""The report's page, the summary on a terminal, and Prometheus' text."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re

import pytest
from rich.console import Console

from penstock.watch.chart_data import draw
from penstock.watch.digest import Digest
from penstock.watch.export.prometheus import exposition
from penstock.watch.html import live_page, report_page
from penstock.watch.report import report_data, write_report
from penstock.watch.summary import curve, span, summarise
from tests.unit.watch.runs import START_T, event, progress, start, training, write_run


def chart_data(events):
    digest = Digest()
    for record in events:
        digest.take(record)
    return draw(digest, name="mnist", now_s=START_T)


def rendered(events) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(summarise(chart_data(events)))
    return console.file.getvalue()


def test_a_page_holds_everything_and_fetches_nothing():
    page = report_page(chart_data(training(100)))
    assert not re.search(r"(src|href)=\"(?!data:|#)", page) and "@import" not in page and "url(" not in page
    assert "connect-src 'none'" in page.replace("&#x27;", "'")


@pytest.mark.parametrize("page", [report_page(chart_data(training(30))), live_page()], ids=["report", "live"])
def test_the_policy_allows_this_script_and_style_only(page):
    policy = re.search(r'Security-Policy" content="([^"]*)"', page).group(1).replace("&#x27;", "'")
    for text in (
        re.findall(r"<script>(.*?)</script>", page, re.S)[-1],
        re.search(r"<style>(.*?)</style>", page, re.S).group(1),
    ):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    assert "unsafe" not in policy and policy.startswith("default-src 'none'")


@pytest.mark.parametrize("evil", ["</script><script>alert(1)</script>", "<!--<script>", "%DATA%", "\u2028'\"&<b>"])
def test_what_a_run_says_is_data(evil):
    page = report_page(chart_data([start(config={"name": evil}), event(START_T, "x.y", evil)]) | {"run": evil})
    stored = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1)
    assert json.loads(stored)["chart_data"]["run"] == evil
    assert page.count("<script") == 2 and page.count("</script>") == 2


def test_a_report_file_appears_whole(tmp_path):
    run = write_run(tmp_path / "mnist", training(50))
    path = write_report(report_data(run), tmp_path / "deep" / "er" / "report.html")
    assert path.read_text().startswith("<!doctype html>") and [path] == list(path.parent.iterdir())
    assert report_data(tmp_path)["run"] == "mnist"


def test_a_summary_names_what_matters():
    text = rendered(training(400))
    parts = [
        "mnist",
        "finished",
        "2 attempts",
        "10 of 10, step 400",
        "peak",
        "of 2 GB",
        "val_loss",
        "▁",
        "read fashion/",
    ]
    parts += ["38 MB", "The training process died once", "Micro-batches of 128", "workbench"]
    for part in parts:
        assert part in text, part


def test_a_summary_of_little():
    assert "empty" in rendered([])
    assert "failed" in rendered([start(), event(START_T, "run.end", status="failed", error="[red]boom[/]")])
    assert "[red]boom[/]" in rendered([start(), event(START_T, "run.end", status="failed", error="[red]boom[/]")])
    assert "nan" in rendered([event(START_T, "train.epoch", epoch=0, logs={"loss": "nan"}, seconds=1.0)])


def test_curves():
    assert curve([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert curve([5, 5], top=10) == "▅▅" and curve([3, 3, 3]) == "▅▅▅"
    assert curve([]) == curve([None]) == "" and curve([1, None, 2]) == "▁ █"
    assert len(curve(list(range(1000)), width=40)) == 40


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0.5, "0.5 s"), (59, "59 s"), (125, "2 min 5 s"), (7260, "2 h 1 min")]
)
def test_times(seconds, text):
    assert span(seconds) == text


def test_prometheus_text():
    runs = [("a", chart_data(training(100))["facts"]), ('b"\\\n', chart_data([progress(START_T, 1)])["facts"])]
    text = exposition(runs)
    assert 'penstock_memory_limit_bytes{run="a"} 2000000000\n' in text
    assert 'penstock_metric{run="a",name="val_loss"}' in text and 'penstock_running{run="a"} 0\n' in text
    assert 'penstock_steps{run="b\\"\\\\\\n"} 1\n' in text
    line = r'[a-z_]+\{run="(\\.|[^"\\])*"(,name="[^"]*")?\} [-+0-9.e]+'
    assert all(row.startswith("# ") or re.fullmatch(line, row) for row in text.splitlines())
    names = re.findall(r"# TYPE (\S+)", text)
    assert len(names) == len(set(names))
    assert exposition([]) == "\n"
