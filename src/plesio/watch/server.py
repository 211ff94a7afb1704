"""The server of the live page: static files, the list of runs, and what is new in them as server-sent events.

| address (after the token)   | answers                                                             |
| --------------------------- | ------------------------------------------------------------------- |
| /                           | the page                                                            |
| /runs                       | the list of runs, as JSON                                           |
| /events?run=NAME&run=NAME   | a stream: for each run, the lines of its record that are new        |
| /ask?run=NAME&what=stop     | POST: asks a run under way for what `plesio.observe.asked` knows    |

And without the token, for monitors, which read only:

| address   | answers                                                                                         |
| --------- | ----------------------------------------------------------------------------------------------- |
| /metrics  | all numbers of runs that are under way or have just ended, in the format of OpenMetrics          |
| /status   | how they stand, for people; 503 where one stands still, failed, or there is none                 |
| /healthz  | 200; 503 where the head of the run that the page is served for has hung for `HANGS_S`            |
| /readyz   | 200 while a run is under way or waits for its workers, else 503                                  |

The server holds no run in memory: for each page that is open it knows how far it has read.
"""

from __future__ import annotations

import asyncio
import mimetypes
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import BinaryIO

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from plesio.errors import ConfigurationError
from plesio.observe.asked import ASKED, ask
from plesio.observe.encoding import as_json
from plesio.observe.record import ending
from plesio.observe.sinks.exposition import CONTENT_TYPE, Exposition
from plesio.watch.runs import Tail, found, listed
from plesio.watch.status import STILL_S, Status, statuses

EVERY_S = 0.5  # how often runs under way are looked at
LAST_S = 1.0  # how long an open page has to read the end of the run that it was served for
HANGS_S = 600.0  # twice as long as a head waits for its server by default
BEAT = 20
"""After so many looks without anything new, something is sent all the same, so that a closed page is noticed."""
SHOWN_MAX = 10  # how many runs a page shows at a time
FILES = ("live.css", "live.js", "report.css", "report.js", "uplot.min.css", "uplot.min.js")
POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"the live page cannot listen on {host}:{port}: {error}; give another --port (0 takes any), or another --host"
        ) from error


class Page:
    """The server for the runs in one folder; `own`: of one run, with which it ends."""

    def __init__(self, runs: Path, sock: socket.socket, own: bool = False) -> None:
        self._all, self._socket, self._own = runs, sock, own
        self._exposition = Exposition(open_metrics=True)
        self.token = secrets.token_urlsafe(16)
        routes = [
            Route("/runs", self._runs),
            Route("/events", self._events),
            Route("/ask", self._ask, methods=["POST"]),
            Route("/", _static("live.html")),
            *(Route(f"/{name}", _static(name)) for name in FILES),
        ]
        monitors = [
            Route("/metrics", self._metrics),
            Route("/status", self._status),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
        ]
        app = Starlette(routes=[*monitors, Mount(f"/{self.token}", routes=routes)])
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, lifespan="off")
        self._server = uvicorn.Server(config)

    def address(self, host: str) -> str:
        """What to open in a browser."""
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self._socket.getsockname()[1]}/{self.token}/"

    def serve(self, until: BinaryIO | None = None) -> None:
        """Serve until Ctrl-C; or, with `until`, a pipe, until that is closed."""
        if until is not None:
            threading.Thread(target=self._wait, args=(until,), daemon=True).start()
        self._server.run(sockets=[self._socket])

    def _wait(self, pipe: BinaryIO) -> None:
        pipe.read()
        time.sleep(LAST_S)
        self._server.should_exit = True

    async def _runs(self, request: Request) -> Response:
        known = as_json(await asyncio.to_thread(listed, self._all))
        return Response(known, media_type="application/json", headers=HEADERS)

    async def _events(self, request: Request) -> Response:
        known = await asyncio.to_thread(found, self._all)
        names = request.query_params.getlist("run")[:SHOWN_MAX]
        tails = {name: (known[name], Tail(known[name])) for name in names if name in known}
        return StreamingResponse(self._stream(tails), media_type="text/event-stream", headers=HEADERS)

    async def _stream(self, tails: dict[str, tuple[Path, Tail]]) -> AsyncIterator[str]:
        idle = 0
        while not self._server.should_exit:
            new = False
            for name, (folder, tail) in list(tails.items()):
                run = as_json(name).decode()
                try:
                    lines = await asyncio.to_thread(tail.lines)
                except OSError:
                    del tails[name]
                    yield f'data: {{"run":{run},"gone":true}}\n\n'
                    continue
                if lines:
                    new = True
                    yield f'data: {{"run":{run},"lines":[{",".join(lines)}]}}\n\n'
                    if tail.goes_on:
                        await asyncio.to_thread(_want_advice, folder)
            idle = 0 if new else idle + 1
            if idle % BEAT == 1:  # also at once, when all that there was has been sent
                yield 'data: {"idle":true}\n\n'
            if not new:
                await asyncio.sleep(EVERY_S)

    async def _statuses(self) -> list[Status]:
        return await asyncio.to_thread(statuses, self._all)

    async def _metrics(self, request: Request) -> Response:
        text = self._exposition.text(one.shown for one in await self._statuses())
        return Response(text, media_type=CONTENT_TYPE, headers=HEADERS)

    async def _status(self, request: Request) -> Response:
        try:
            still_s = float(request.query_params.get("still_s", STILL_S))
        except ValueError:
            return PlainTextResponse("still_s= takes seconds\n", 400, HEADERS)
        known = await self._statuses()
        shown = [one for one in known if one.end is None] or known[:1]
        words = "\n\n".join(one.in_words(still_s) for one in shown) or "no run is under way"
        well = bool(shown) and all(one.state(still_s)[1] for one in shown)
        return PlainTextResponse(f"{words}\n", 200 if well else 503, HEADERS)

    async def _healthz(self, request: Request) -> Response:
        told = [one for one in await self._statuses() if one.told.numbers and one.end is None] if self._own else []
        hangs = any(one.listed.silent_s > HANGS_S for one in told)
        return PlainTextResponse("the run hangs\n" if hangs else "ok\n", 503 if hangs else 200, HEADERS)

    async def _readyz(self, request: Request) -> Response:
        ready = any(one.end is None for one in await self._statuses())
        return PlainTextResponse("ok\n" if ready else "no run is under way\n", 200 if ready else 503, HEADERS)

    async def _ask(self, request: Request) -> Response:
        name, what = request.query_params.get("run", ""), request.query_params.get("what", "")
        known = await asyncio.to_thread(found, self._all)
        if name not in known or not ASKED.fullmatch(what):
            return PlainTextResponse("no such run, or nothing that can be asked for", 404, HEADERS)
        if await asyncio.to_thread(ending, known[name]) is not None:
            return PlainTextResponse("the run is over", 409, HEADERS)
        try:
            ask(known[name], what)
        except OSError as error:
            return PlainTextResponse(f"the run folder cannot be written: {error.strerror}", 409, HEADERS)
        return PlainTextResponse("asked", 200, HEADERS)


def _want_advice(folder: Path) -> None:
    """Somebody watches: a run under way says now and then whether another strategy would be faster."""
    if ending(folder) is None:
        with suppress(OSError):  # the folder may be somebody else's
            ask(folder, "advice")


def _static(name: str):  # type: ignore[no-untyped-def]
    kind, _ = mimetypes.guess_type(name)
    content = (resources.files("plesio.observe") / "page" / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return answer
