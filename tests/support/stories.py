"""What a sequencer decides, told as text: what happens, and after an arrow what comes of it.

    a dead worker's push counts in its round | sync_sgd | 2 workers
        push 0, die 0, push 1 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 1#1@v1

A story begins with its name and its strategy; several strategies decide the same. Workers and seconds of silence follow where
they are not 3 and 300.

- `0#2` is the second contribution of worker 0; `0'2#1` is the first one of its second process.
- `go 0#1@v3 tau1 freed`: the answer to number 1 lets worker 0 go on from version 3. It was one version stale, and it was another
  worker's contribution that set it free.
- `0/4` is batch 4 of epoch 0. `done`, `skipped` and the end of a `grace` are told when they change.
- Before the arrow stand settings that differ from the usual: `push 1 finite=False`, `lease 0 most=2`, `die 0/1` (of process 1).
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator, Mapping
from math import isinf
from textwrap import dedent
from typing import Any, NamedTuple

from plesio.cli.settings import strategy_of
from plesio.core import events
from plesio.core.events import Effect, Event, Verdict
from plesio.strategy import Strategy
from support.sequencing import Run

OF_WORKERS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "push": (events.Pushed, {"steps": 1, "samples": 32, "batches": 0, "finite": True}),
    "join": (events.Joined, {}),
    "die": (events.Left, {"died": True}),
    "finish": (events.Left, {"died": False}),
    "lease": (events.LeaseWanted, {"epoch": 0, "total": 6, "most": 1, "unused": 0}),
    "abandon": (events.Abandoned, {"batches": 0}),
    "report": (events.Reported, {"batches": 0}),
    "want rows": (events.RowsWanted, {"ahead": False}),
}
OF_RUNS: dict[str, type[Any]] = {"scale": events.Scaled, "switch": events.Switched, "give up": events.GivenUp}
EVENT = re.compile(r"([a-z ]+?)(?: (\d+(?:\.\d+)?)(?:/(\d+))?)?((?: \w+=\S+)*)")


class Story(NamedTuple):
    """One of a table."""

    name: str
    strategy: Strategy
    workers: int
    silence_s: float
    lines: list[str]


def stories(text: str) -> Iterator[Story]:
    """Those of a table; one a strategy."""
    for part in re.split(r"\n(?=\S)", dedent(text).strip()):
        head, *lines = part.splitlines()
        name, *about = head.split(" | ")
        workers = next((int(one.split()[0]) for one in about if one.endswith(" workers")), 3)
        silence_s = next((float(one.split()[1]) for one in about if one.startswith("silence ")), 300.0)
        for one in about:
            if not one.endswith(" workers") and not one.startswith("silence "):
                yield Story(name, strategy_of(one, workers), workers, silence_s, _joined(lines))


def _joined(lines: list[str]) -> list[str]:
    """A line ends with what comes of it; what is further to the right goes on with the line before."""
    found, open_line = list[str](), False
    for line in lines:
        stripped = line.split("  # ")[0].strip()
        if found and line.startswith(" " * 8):
            found[-1] += f" {stripped}"
        elif open_line:
            found[-1] += f", {stripped}"
        else:
            found.append(stripped)
        open_line = " -> " not in found[-1]
    return found


def told(story: Story) -> list[str]:
    """The story as it goes."""
    run, lines, before = Teller(story), list[str](), list[str]()
    for happens in ", ".join(line.split(" -> ")[0] for line in story.lines).split(", "):
        before.append(happens)
        if comes := run.comes_of(happens):
            lines.append(f"{', '.join(before)} -> {comes}")
            before = []
    return [*lines, ", ".join(before)] if before else lines


class Teller:
    """Plays what happens; says in words what comes of it."""

    def __init__(self, story: Story) -> None:
        self.run = Run(story.strategy, story.workers, story.silence_s)
        self.state = self._state()

    def comes_of(self, happens: str) -> str:
        match = EVENT.fullmatch(happens)
        assert match, happens
        kind, number, incarnation, more = match.groups()
        given = {name: literal_eval(value) for name, value in (one.split("=") for one in more.split())}
        if kind in ("at", "tick"):
            self.run.now_s = float(number)
        if kind == "at":
            return ""
        effects = self.run.tell(self._event(kind, number, incarnation, given))
        was, self.state = self.state, self._state()
        changed = [f"{name} {value}" for name, value in self.state.items() if was[name] != value]
        return "; ".join([line(one) for one in effects] + changed)

    def _event(self, kind: str, number: str, incarnation: str | None, given: dict[str, Any]) -> Event:
        if kind == "tick":
            return events.Ticked()
        if kind == "begin round":
            return events.RoundBegins(**given)
        if kind in OF_RUNS:
            return OF_RUNS[kind](*([int(number)] if number else []))  # type: ignore[no-any-return]
        made, usual = OF_WORKERS[kind]
        worker = int(number)
        if kind == "join" and incarnation is None:
            self.run.incarnations[worker] += 1
            self.run.numbers[worker] = 0
        if kind == "push" and "number" not in given:
            self.run.numbers[worker] += 1
            given["number"] = self.run.numbers[worker]
        of = int(incarnation) if incarnation else self.run.incarnations[worker]
        return made(worker=worker, incarnation=of, **{**usual, **given})  # type: ignore[no-any-return]

    def _state(self) -> Mapping[str, str]:
        until_s = self.run.sequencer.grace_until_s
        leases = self.run.leases
        grace = "over" if isinf(until_s) else f"until {until_s:g}"
        return {"done": str(leases.done), "skipped": str(leases.skipped), "grace": grace}


def line(effect: Effect) -> str:
    match effect:
        case events.Fold(version=version, members=members, scale=scale, held=held):
            return f"fold v{version} {_members(members)} lr {scale:.2f}{f' held of {held:.2f}' if held else ''}"
        case events.Grant(worker=worker, number=number, version=version, freed_by_other=freed):
            return f"go {worker}#{number}@v{version}{_verdict(effect)}{' freed' if freed else ''}"
        case events.Hold(worker=worker, number=number, weight=weight):
            return f"hold {worker}#{number} x {weight:.2f}"
        case events.Discard(worker=worker, incarnation=incarnation, number=number, samples=samples):
            return f"drop {_process(worker, incarnation)}#{number}{_verdict(effect)}{f' {samples}' if samples else ''}"
        case events.Cancel(worker=worker, number=number, version=version):
            return f"stop {worker}#{number}@v{version}"
        case events.Evict(worker=worker, incarnation=incarnation, silent_s=silent_s):
            return f"evict {_process(worker, incarnation)} after {silent_s:g}"
        case events.Leased(worker=worker, batches=batches, epoch=epoch):
            found = " ".join(f"{one}/{batch}" for one, batch in batches) or "nothing"
            return f"lend {worker} {found}{f' at epoch {epoch:.2f}' if epoch else ''}"
        case events.Serve(worker=worker, number=number, ahead=ahead):
            return f"serve {worker}#{number}{' ahead' if ahead else ''}"
        case events.Switch(phase=phase, waited_s=waited_s):
            return f"phase {phase}{f' after {waited_s:g}' if waited_s else ''}"
        case events.RoundEnded(version=version, members=members):
            return f"end v{version} {_members(members)}"
        case events.Short(came=came, least=least, over=over, hopeless=hopeless):
            return f"short {came} of {least}{' over' if over else ''}{' hopeless' if hopeless else ''}"
    raise AssertionError(effect)


def _verdict(effect: events.Discard | events.Grant) -> str:
    verdict = "" if effect.verdict is Verdict.TAKEN else f" {effect.verdict.words}"
    return f"{verdict}{f' tau{effect.staleness}' if effect.staleness else ''}"


def _members(members: tuple[events.Member, ...]) -> str:
    parts = (
        f"{_process(one.worker, one.incarnation)}#{one.number} tau{one.staleness} {one.share:.2f}" for one in members
    )
    return f"[{', '.join(parts)}]"


def _process(worker: int, incarnation: int) -> str:
    return f"{worker}" if incarnation == 1 else f"{worker}'{incarnation}"
