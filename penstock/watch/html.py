"""The page as one file: style, script and data inside, nothing fetched from anywhere.

Covers: putting the page together, for the report (with data) and for the live page (without), and its content policy.
Does not cover: what the data are (chart_data.py), serving (server.py).
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.metadata
import json
import re
from functools import cache
from importlib import resources
from typing import Any

SCRIPTS = ("format.js", "axis.js", "charts.js", "lanes.js", "run.js")


def report_page(chart_data: dict[str, Any]) -> str:
    """A report that opens offline."""
    return _page(f"{chart_data['run']} · penstock report", {"chart_data": chart_data}, (*SCRIPTS, "start.js"), "'none'")


@cache
def live_page() -> str:
    """The live page; it fetches its data from where it came from, and nothing from elsewhere."""
    return _page("penstock watch", {}, (*SCRIPTS, "compare.js", "live.js"), "'self'")


def policy(style: str, script: str, connect: str) -> str:
    """What the page may do: run its own script, use its own style, and connect to `connect`."""
    return (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _page(title: str, data: dict[str, Any], scripts: tuple[str, ...], connect: str) -> str:
    style = _read("page.css")
    script = '(() => {\n"use strict";\n' + "\n".join(_read(name) for name in scripts) + "})();"
    # A "<" inside JSON can only be in text, where this escape means the same; "</script>" would end the element.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "POLICY": html.escape(policy(style, script, connect)),
        "TITLE": html.escape(title),
        "STYLE": style,
        "VERSION": html.escape(_version()),
        "DATA": text,
        "SCRIPT": script,
    }
    # Split first: what the data say is never searched for names.
    pieces = re.split("%([A-Z]+)%", _read("page.html"))
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _read(name: str) -> str:
    return (resources.files("penstock.watch") / "page" / name).read_text(encoding="utf-8")


def _version() -> str:
    try:
        return importlib.metadata.version("penstock")
    except importlib.metadata.PackageNotFoundError:
        return ""
