"""Of all tests: one thread, as in the workers: a kernel that splits its work sums in another order. Ctrl-C as in a shell's
foreground: in its background it is ignored, and so it would be by all that the tests start. Failures that show their values, also
where the assertion is in `support`. A tenth of hypothesis's examples in `make test`, a quarter in `make test-all`. And a fork
server that has loaded the kernels of tables: each process of a run would for itself, which takes a second. With PLESIO_PAUSES
workers pause at random. The programs of `support.programs` have one warm process in a session.

And what examples in docstrings take for granted (docs/reference.md): `torch`, `ps`, the `train` of `ps.run`'s example, and a new
folder to write into."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import plesio as ps
from plesio.launch.local.forkserver import PRELOAD, ForkServer

PAUSES = ("support.pauses",) if os.environ.get("PLESIO_PAUSES") else ()
pytest.register_assert_rewrite("support")
# No test depends on the load.
AT_ITS_OWN_PACE: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# `support.long_forms` goes by these.
settings.register_profile("long", max_examples=125, **AT_ITS_OWN_PACE)
settings.register_profile("all", max_examples=25, **AT_ITS_OWN_PACE)
settings.register_profile("few", max_examples=10, **AT_ITS_OWN_PACE)
settings.load_profile("all")
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)
ForkServer.shared.__func__.__defaults__ = ((*PRELOAD, "support.warm", *PAUSES),)


def pytest_configure(config: pytest.Config) -> None:
    from support import programs

    if not hasattr(config, "workerinput"):  # which xdist's processes have
        programs.start()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from support.first import sort  # after `support` is registered
    from support.long_forms import leave_rows

    sort(items)
    leave_rows(items)


def train(worker: Any) -> None:
    model = torch.nn.Linear(2, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).square().mean()
        loss.backward()
        optimizer.step()
        worker.log(loss=loss)


@pytest.fixture(autouse=True)
def _names_of_examples(request: pytest.FixtureRequest) -> None:
    if not isinstance(request.node, pytest.DoctestItem):
        return
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    monkeypatch.chdir(request.getfixturevalue("tmp_path"))
    monkeypatch.setattr(logging.getLogger("plesio"), "handlers", [])  # a command that was tested before shows the log
    request.getfixturevalue("doctest_namespace").update(ps=ps, torch=torch, train=train)
