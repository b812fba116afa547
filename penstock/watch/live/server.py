"""The live page's server: a page, a stream of server-sent events, and Prometheus' text.

Covers: routes, the secret token, what a stream sends and where it goes on after a lost connection.
Does not cover: starting and stopping (live.py), reading runs (run_list.py).

Every answer needs the token, which is compared in constant time. A page that is opened with the token in its address
gets a cookie for it, and is sent to the address without: a token in an address ends up in histories and logs. Requests
that name another host, or come from another page, are refused. A stream's event ids hold the place of each run that
it shows; a page that comes back with one is sent what changed since then, also by a server that was started again.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote, unquote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.watch.export.prometheus import CONTENT_TYPE, exposition
from penstock.watch.html import live_page
from penstock.watch.live.run_list import RunList

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


class RunServer:
    """Answers requests about one folder's runs. Once `stopping()` is true, all streams end at their next poll."""

    def __init__(
        self,
        run_list: RunList,
        token: str,
        *,
        session: str = "",
        poll_s: float = POLL_S,
        hosts: frozenset[str] = frozenset(),
    ) -> None:
        self.run_list, self.token, self.poll_s = run_list, token, poll_s
        self.session = session or token
        """What a page's cookie holds. It outlives the token, so that open pages find the next server."""
        self.hosts = hosts
        """Names under which the page may be asked for, with ports; empty: any."""
        self.stopping: Callable[[], bool] = lambda: False
        self.streams = 0

    def app(self) -> Starlette:
        """The ASGI application."""
        routes: dict[str, Callable[[Request], Any]] = {
            "/": self.page,
            "/stream": self.stream,
            "/api/runs": self.runs,
            "/api/chart-data": self.chart_data,
            "/metrics": self.metrics,
        }
        return Starlette(routes=[Route(path, self._guarded(answer)) for path, answer in routes.items()])

    def _guarded(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Refuse requests without the token."""

        async def guarded(request: Request) -> Response:
            if not self._from_here(request):
                text = "This address is not the page's own. Open the one that `penstock watch` printed.\n"
                return PlainTextResponse(text, 403, headers=_HEADERS)
            given = _given_token(request).encode()
            known = [hmac.compare_digest(given, secret.encode()) for secret in (self.token, self.session)]
            if not any(known):
                text = "The token is missing or wrong. Open the address that `penstock watch` printed.\n"
                return PlainTextResponse(text, 403, headers=_HEADERS)
            exchanged = "token" in request.query_params and request.url.path == "/"
            response: Response = self._with_cookie(request) if exchanged else await answer(request)
            response.headers.update(_HEADERS)
            return response

        return guarded

    def _from_here(self, request: Request) -> bool:
        """Whether the host that was asked for is this one, and the page that asks, if it says so, too."""
        host = request.headers.get("host", "").lower()
        origin = request.headers.get("origin")
        known = not self.hosts or host in self.hosts
        return known and (origin is None or origin.lower() == f"{request.url.scheme}://{host}")

    def _with_cookie(self, request: Request) -> Response:
        """The same page without the token in its address; from now on the cookie holds it."""
        kept = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        response = RedirectResponse("/" + ("?" + urlencode(kept) if kept else ""), 303)
        response.set_cookie(_cookie_name(request), self.session, httponly=True, samesite="strict", path="/")
        return response

    async def page(self, request: Request) -> Response:
        """The page itself, without data."""
        return HTMLResponse(live_page())

    async def runs(self, request: Request) -> Response:
        """The runs there are, as JSON."""
        return JSONResponse(await run_in_threadpool(self.run_list.listing))

    async def chart_data(self, request: Request) -> Response:
        """One run's chart data as JSON, for scripts."""
        found = await run_in_threadpool(self._whole_chart_data, request.query_params.get("run", ""))
        if found is None:
            return JSONResponse({"error": "There is no such run. /api/runs lists them."}, 404)
        return JSONResponse(finite(found))

    async def metrics(self, request: Request) -> Response:
        """The newest runs' numbers for Prometheus."""
        text = await run_in_threadpool(self._exposition)
        return PlainTextResponse(text, headers={"Content-Type": CONTENT_TYPE})

    async def stream(self, request: Request) -> Response:
        """Server-sent events: `runs` when the list changes, `chart_data` when a chosen run does."""
        if self.streams >= MOST_STREAMS:
            return PlainTextResponse("Too many pages are open.\n", 503)
        self.streams += 1  # counted before anything is waited for, so that no two take the last place
        names = request.query_params.getlist("run")[:MOST_COMPARED]
        last = request.headers.get("last-event-id") or request.query_params.get("last", "")
        return _CountedStream(self._tell(names, parse_id(last)), self._stream_ended)

    def _stream_ended(self) -> None:
        self.streams -= 1

    async def _tell(self, names: list[str], places: dict[str, str]) -> AsyncIterator[str]:
        sent: dict[str, Any] = {}
        polls = quiet = 0
        while not self.stopping():
            news: list[str] = []
            more = False
            if polls % LISTING_EVERY == 0:
                listing = await run_in_threadpool(self.run_list.listing)
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

    def _changes(self, name: str, places: dict[str, str], sent: dict[str, Any]) -> tuple[list[str], bool]:
        """The event that brings a page up to date, if anything changed, and whether more is waiting to be read."""
        found = self.run_list.chart_data(name, places.get(name, ""))
        if found is None:
            return [], False
        chart_data, more = found
        mark = (chart_data["facts"]["events"], chart_data["facts"]["status"])
        coming_back = name in places and "run:" + name not in sent
        if sent.get("run:" + name) == mark or (coming_back and more):  # half a run would replace a whole one
            return [], more
        sent["run:" + name] = mark
        places[name] = chart_data["place"]
        return [_event("chart_data", chart_data, format_id(places))], more

    def _whole_chart_data(self, name: str) -> dict[str, Any] | None:
        while True:
            found = self.run_list.chart_data(name)
            if found is None or not found[1]:
                return found and found[0]

    def _exposition(self) -> str:
        names = [run.name for run in self.run_list.runs()[:MOST_SCRAPED]]
        facts = [(name, self.run_list.facts(name)) for name in names]
        return exposition((name, found) for name, found in facts if found is not None)


class _CountedStream(StreamingResponse):
    """A stream of events that gives its place back however it ends, also if it never began to send."""

    def __init__(self, content: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def format_id(places: dict[str, str]) -> str:
    """An event id that holds the place of each run."""
    return "&".join(f"{quote(name, safe='')}={place}" for name, place in places.items())


def parse_id(text: str) -> dict[str, str]:
    """The places in an event id; what is not one is left out."""
    pairs = (part.partition("=") for part in text.split("&")[:MOST_COMPARED])
    return {unquote(name): place for name, equals, place in pairs if name and equals}


def _event(kind: str, data: Any, place: str = "") -> str:
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return f"event: {kind}\n" + (f"id: {place}\n" if place else "") + f"data: {text}\n\n"


def _given_token(request: Request) -> str:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return bearer.strip()
    return request.query_params.get("token") or request.cookies.get(_cookie_name(request), "")


def _cookie_name(request: Request) -> str:
    """Cookies are of a host, not of a port: several pages on one machine must not take each other's."""
    return f"penstock_watch_{request.url.port or 80}"


def finite(value: Any, depth: int = 32) -> Any:
    """The value as strict JSON can hold it: NaN, infinities and what is nested too deep become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): finite(item, depth - 1) for name, item in value.items()} if depth else None
    if isinstance(value, (list, tuple)):
        return [finite(item, depth - 1) for item in value] if depth else None
    return value
