"""The verdict as one HTML file, in the style of the report.

Covers: a page that opens offline: headline, memory over time, causes, evidence; no script inside.
Does not cover: the report of penstock's own runs (watch/html.py), whose style sheet is used.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources

from penstock.core.sizes import size
from penstock.doctor.verdict.rank import Ranked
from penstock.doctor.verdict.verdict import RunVerdict

WIDTH, HEIGHT = 960, 220
MARK = {"high": "bad", "medium": "warn", "low": "note"}
SHADES = {"import": "c0", "load": "c1", "train": "c3", "validation": "c2", "save": "c5", "predict": "c7"}


def page(verdict: RunVerdict) -> str:
    """The whole page."""
    style = (resources.files("penstock.watch") / "page" / "page.css").read_text(encoding="utf-8") + EXTRA
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = escape(f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'")
    kind = "good" if verdict.ending.kind == "finished" else "bad" if verdict.memory else "warn"
    command = escape(" ".join(verdict.command))
    cards = "".join(_cause(item, place) for place, item in enumerate(verdict.causes, 1))
    saved = (
        f'<section class="card"><h2>What would have saved it</h2><pre>{escape(verdict.save)}</pre></section>'
        if verdict.save
        else ""
    )
    going_on = "\n".join(filter(None, (verdict.resume.text, verdict.resume.command)))
    saved += f'<section class="card"><h2>Going on</h2><pre>{escape(going_on)}</pre></section>' if going_on else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{command} · penstock verdict</title><style>{style}</style></head><body>
<header class="top"><div class="brand">
<svg viewBox="0 0 32 20" aria-hidden="true"><path d="M1 5h11c8 0 9 10 19 10"/></svg>
<span>penstock</span></div></header>
<div class="frame"><main id="main">
<section class="card head"><h1>{escape(verdict.ending.text)}</h1>
<span class="pill is-{kind}">{escape(verdict.ending.kind)}</span>
<span class="muted">{command}</span></section>
{_tiles(verdict)}
<section class="card"><h2>Memory over time</h2>{_chart(verdict)}</section>
{cards}{saved}
<section class="card"><h2>Evidence</h2>{_list(verdict)}</section>
</main></div>
<footer class="foot">Computed by penstock from {escape(str(verdict.folder))}. Nothing was sent anywhere.</footer>
</body></html>
"""


EXTRA = """
pre { background: var(--bar); border-radius: 8px; padding: 10px 14px; overflow-x: auto; margin: 8px 0 0; }
.chart rect { shape-rendering: crispEdges; } .key { margin-right: 14px; }
.key::before { content: ""; display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
.why { color: var(--soft); margin-top: 6px; } .shows { margin: 8px 0 0 18px; font-size: .9rem; }
""" + "\n".join(
    f".f-{name} {{ fill: var(--{name}); opacity: .55; }} .k-{name}::before {{ background: var(--{name}); }}"
    for name in sorted(set(SHADES.values()))
)


def _tiles(verdict: RunVerdict) -> str:
    share = verdict.shape.peak / max(1, verdict.limit)
    tiles = (
        ("Peak", size(verdict.shape.peak), f"{share:.0%} of {size(verdict.limit)}"),
        ("Phase", verdict.phase, f"step {verdict.step}" if verdict.step else ""),
        ("Shape", verdict.shape.name, verdict.shape.text),
        ("Held by", verdict.holder.split(" held")[0], verdict.holder),
    )
    body = "".join(
        f'<div class="tile"><dt>{escape(a)}</dt><dd>{escape(b)}<div class="sub">{escape(c)}</div></dd></div>'
        for a, b, c in tiles
    )
    return f'<dl class="tiles">{body}</dl>'


def _chart(verdict: RunVerdict) -> str:
    """Bars coloured by phase, and the limit as a line."""
    points = verdict.points
    if not points:
        return '<p class="muted">No sample was written.</p>'
    top = max(verdict.limit, verdict.shape.peak) * 1.05
    step = max(1, len(points) // 240)
    kept = [max(points[i : i + step], key=lambda p: p[1]) for i in range(0, len(points), step)]
    end = max(points[-1][0], 0.001)
    bars = []
    for place, (t, used, phase) in enumerate(kept):
        x = WIDTH * t / end
        after = WIDTH * kept[place + 1][0] / end if place + 1 < len(kept) else WIDTH
        high = HEIGHT * used / top
        shade = SHADES.get(phase, "c0")
        bars.append(
            f'<rect class="f-{shade}" x="{x:.1f}" y="{HEIGHT - high:.1f}" '
            f'width="{max(1.0, after - x):.1f}" height="{high:.1f}"/>'
        )
    line = HEIGHT - HEIGHT * verdict.limit / top
    phases = dict.fromkeys(phase for _, _, phase in kept)
    legend = "".join(f'<span class="key k-{SHADES.get(phase, "c0")}">{escape(phase)}</span>' for phase in phases)
    return (
        f'<div class="chart"><svg viewBox="0 0 {WIDTH} {HEIGHT + 22}" role="img" aria-label="Memory '
        f'over time">{"".join(bars)}'
        f'<line class="limit" x1="0" x2="{WIDTH}" y1="{line:.1f}" y2="{line:.1f}"/>'
        f'<text class="limit-text" x="4" y="{line + 13:.1f}">limit {escape(size(verdict.limit))}</text>'
        f'<text x="0" y="{HEIGHT + 16}">0 s</text><text x="{WIDTH}" y="{HEIGHT + 16}" '
        f'text-anchor="end">{end:.1f} s</text></svg></div>'
        f'<p class="muted">{legend}</p>'
    )


def _cause(item: Ranked, place: int) -> str:
    shows = "".join(f"<li>{escape(line)}</li>" for line in item.shows)
    return (
        f'<section class="card"><div class="head"><h2>{place}. {escape(item.cause.title)}</h2>'
        f'<span class="pill is-{MARK[item.confidence]}">{item.confidence}</span><span '
        f'class="muted">{escape(item.place)}</span></div>'
        f'<ul class="shows">{shows}</ul><p class="why">{escape(item.cause.why)}</p><p><b>Cure:</b> '
        f"{escape(item.cause.cure)}</p></section>"
    )


def _list(verdict: RunVerdict) -> str:
    lines = [f"grew at {line}" for line in verdict.lines] + [f"held by {n}" for n in verdict.names]
    lines += [f"probe: {line}" for line in verdict.probes]
    return (
        '<ul class="shows">'
        + "".join(f"<li>{escape(line)}</li>" for line in lines or ["nothing grew notably"])
        + "</ul>"
    )
