"""The live page's server: a page, a stream of server-sent events, and Prometheus' text.

Covers: routes, the secret token, what a stream sends and where it goes on after a lost connection.
Does not cover: starting and stopping (watch/live.py), reading runs (watch/gallery.py).

Every answer needs the token, which is compared in constant time. A stream's event ids hold the place of each run that
it shows; a page that comes back with one is sent what changed since then, also by a server that was started again.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock.watch.gallery import Gallery
from penstock.watch.html import live_page
from penstock.watch.prometheus import CONTENT_TYPE, exposition

POLL_S = 0.5
LISTING_EVERY = 4
"""The list of runs is looked at once in so many polls."""
QUIET_POLLS = 30
"""After so many polls without news a comment is sent, so that a dead connection is noticed."""
MOST_STREAMS = 32
MOST_COMPARED = 8
MOST_SCRAPED = 16
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Watch:
    """Answers requests about one folder's runs. Once `stopping()` is true, all streams end at their next poll."""

    def __init__(self, gallery: Gallery, token: str, *, poll_s: float = POLL_S) -> None:
        self.gallery, self.token, self.poll_s = gallery, token, poll_s
        self.stopping: Callable[[], bool] = lambda: False
        self.streams = 0

    def app(self) -> Starlette:
        """The ASGI application."""
        routes: dict[str, Callable[[Request], Any]] = {
            "/": self.page,
            "/stream": self.stream,
            "/api/runs": self.runs,
            "/api/picture": self.picture,
            "/metrics": self.metrics,
        }
        return Starlette(routes=[Route(path, self._guarded(answer)) for path, answer in routes.items()])

    def _guarded(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Refuse whoever does not know the token."""

        async def guarded(request: Request) -> Response:
            if not hmac.compare_digest(_given_token(request).encode(), self.token.encode()):
                text = "The token is missing or wrong. Open the address that `penstock watch` printed.\n"
                return PlainTextResponse(text, 403, headers=_HEADERS)
            response: Response = await answer(request)
            response.headers.update(_HEADERS)
            return response

        return guarded

    async def page(self, request: Request) -> Response:
        """The page itself, without data."""
        return HTMLResponse(live_page())

    async def runs(self, request: Request) -> Response:
        """The runs there are, as JSON."""
        return JSONResponse(await run_in_threadpool(self.gallery.listing))

    async def picture(self, request: Request) -> Response:
        """One run's picture as JSON, for scripts."""
        found = await run_in_threadpool(self._whole_picture, request.query_params.get("run", ""))
        if found is None:
            return JSONResponse({"error": "There is no such run. /api/runs lists them."}, 404)
        return JSONResponse(found)

    async def metrics(self, request: Request) -> Response:
        """The newest runs' numbers for Prometheus."""
        text = await run_in_threadpool(self._exposition)
        return PlainTextResponse(text, headers={"Content-Type": CONTENT_TYPE})

    async def stream(self, request: Request) -> Response:
        """Server-sent events: `runs` when the list changes, `picture` when a chosen run does."""
        if self.streams >= MOST_STREAMS:
            return PlainTextResponse("Too many pages are open.\n", 503)
        names = request.query_params.getlist("run")[:MOST_COMPARED]
        last = request.headers.get("last-event-id") or request.query_params.get("last", "")
        return StreamingResponse(self._tell(names, parse_id(last)), media_type="text/event-stream")

    async def _tell(self, names: list[str], places: dict[str, str]) -> AsyncIterator[str]:
        self.streams += 1
        sent: dict[str, Any] = {}
        polls = quiet = 0
        try:
            while not self.stopping():
                news: list[str] = []
                more = False
                if polls % LISTING_EVERY == 0:
                    listing = await run_in_threadpool(self.gallery.listing)
                    if listing != sent.get("runs"):
                        sent["runs"] = listing
                        news.append(_event("runs", listing))
                for name in names:
                    changed, unread = await run_in_threadpool(self._changes, name, places, sent)
                    news += changed
                    more = more or unread
                quiet = 0 if news else quiet + 1
                if quiet >= QUIET_POLLS:
                    quiet, news = 0, [": still here\n\n"]
                for text in news:
                    yield text
                polls += 1
                await asyncio.sleep(0.01 if more else self.poll_s)
        finally:
            self.streams -= 1

    def _changes(self, name: str, places: dict[str, str], sent: dict[str, Any]) -> tuple[list[str], bool]:
        """The event that brings a page up to date, if anything changed, and whether more is waiting to be read."""
        found = self.gallery.picture(name, places.get(name, ""))
        if found is None:
            return [], False
        picture, more = found
        mark = (picture["facts"]["events"], picture["facts"]["status"])
        coming_back = name in places and "run:" + name not in sent
        if sent.get("run:" + name) == mark or (coming_back and more):  # half a run would replace a whole one
            return [], more
        sent["run:" + name] = mark
        places[name] = picture["place"]
        return [_event("picture", picture, format_id(places))], more

    def _whole_picture(self, name: str) -> dict[str, Any] | None:
        while True:
            found = self.gallery.picture(name)
            if found is None or not found[1]:
                return found and found[0]

    def _exposition(self) -> str:
        names = [run.name for run in self.gallery.runs()[:MOST_SCRAPED]]
        facts = [(name, self.gallery.facts(name)) for name in names]
        return exposition((name, found) for name, found in facts if found is not None)


def format_id(places: dict[str, str]) -> str:
    """An event id that holds the place of each run."""
    return "&".join(f"{quote(name, safe='')}={place}" for name, place in places.items())


def parse_id(text: str) -> dict[str, str]:
    """The places in an event id; what is not one is left out."""
    pairs = (part.partition("=") for part in text.split("&")[:MOST_COMPARED])
    return {unquote(name): place for name, equals, place in pairs if name and equals}


def _event(kind: str, data: Any, place: str = "") -> str:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return f"event: {kind}\n" + (f"id: {place}\n" if place else "") + f"data: {text}\n\n"


def _given_token(request: Request) -> str:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else request.query_params.get("token", "")
