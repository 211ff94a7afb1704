"""Rows over HTTP, as `plesio serve-rows` serves them. docs/serving.md has the requests and answers."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np
import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from plesio.reading.kept import KeptRows
from plesio.tables.spec import Id
from plesio.tables.strings import ids_of

IDS_MAX = 1 << 16
"""Of how many ids rows are asked for at once."""
BODY_MAX = 1 << 22
BINARY = "application/octet-stream"


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """One of both."""

    ids: list[Id] | None = None
    strings: list[str] | None = None


def rows_app(rows: KeptRows) -> Starlette:
    """An ASGI application that answers with rows: for any ASGI server, or to be mounted in a FastAPI or Starlette app.

    Whoever reaches it can read all rows, and change none.

    >>> app.mount("/embeddings", rows_app(reader.keep(every_s=0.5)))  # doctest: +SKIP
    """

    async def tables(request: Request) -> Response:
        return _json([{"table": name, **rows.size(name)._asdict()} for name in rows.tables])

    async def some(request: Request) -> Response:
        table, binary = request.path_params["table"], request.headers.get("content-type") == BINARY
        if table not in rows.tables:
            raise HTTPException(404, f"the run has no table {table!r}; it has {', '.join(rows.tables)}")
        ids = await _ids(request, binary)
        if len(ids) > IDS_MAX:
            raise HTTPException(413, f"{len(ids):,} ids: allowed are {IDS_MAX:,} at once")
        return await run_in_threadpool(_answer, rows, table, ids, binary)

    async def healthz(request: Request) -> Response:
        return _json({"heard_s_ago": round(time.monotonic() - rows.heard_s, 3), "away": rows.away})

    some_route = Route("/rows/{table}", some, methods=["GET", "POST"])
    routes = [Route("/tables", tables), some_route, Route("/healthz", healthz)]
    return Starlette(routes=routes, exception_handlers={HTTPException: _refused})


async def _ids(request: Request, binary: bool) -> torch.Tensor:
    """What a request asks for."""
    try:
        if request.method != "POST":
            lists = {name: text.split(",") if text else [] for name, text in request.query_params.items()}
            asked = msgspec.convert(lists, Asked, strict=False)
        elif binary:
            return torch.from_numpy(np.frombuffer(await _body(request), "<i8").astype(np.int64))
        else:
            asked = msgspec.json.decode(await _body(request), type=Asked)
    except ValueError as error:  # those of msgspec are such
        raise HTTPException(400, f"that asks for no rows: {error}") from None
    if (asked.ids is None) == (asked.strings is None):
        raise HTTPException(400, "that asks for no rows: give ids, whole numbers, or strings, one of both")
    return torch.tensor(asked.ids, dtype=torch.int64) if asked.ids is not None else ids_of(asked.strings or ())


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_MAX:
            raise HTTPException(413, f"the request is too large: allowed are {BODY_MAX:,} bytes")
    return bytes(body)


def _answer(rows: KeptRows, table: str, ids: torch.Tensor, binary: bool) -> Response:
    version, vectors, known = rows.rows(table, ids)
    if binary:
        told = {"plesio-version": str(version), "plesio-dim": str(vectors.shape[1])}
        return Response(vectors.numpy().astype("<f4").tobytes(), headers=told, media_type=BINARY)
    lists = {"ids": ids.tolist(), "known": known.tolist(), "vectors": vectors.tolist()}
    return _json({"table": table, "version": version, **lists})


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is for these"
    return _json({"error": error.detail}, error.status_code)
