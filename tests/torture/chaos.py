"""The faults that strike at a moment: what crashes, hangs, is cut off or jumps, when, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torture.network import Link
from torture.plan import DEATHS, SWITCHES
from torture.process import Process

if TYPE_CHECKING:
    from torture.world import World

DOWN_S = 1.0
CUT_S = 1.5
JUMP_S = 3600.0
BOUNDARIES = 12
EACH = {DEATHS: 8, SWITCHES: 4}


def schedule(world: World) -> None:
    """Draw when what strikes; the plan says which faults do."""
    plan, rng = world.plan, world.rng
    strikes = {
        "partitions": _cut,
        "worker crashes": _kill,
        "server crashes": _crash_server,
        "two processes in one seat": _double,
        "hangs": _hang,
        "departures": _depart,
        "clock jumps": _jump,
        "table server crashes": _crash_table_server,
        DEATHS: _kill_server,
        SWITCHES: _switch,
    }
    for fault, strike in strikes.items():
        if fault in plan.faults:
            for _ in range(plan.strikes * EACH.get(fault, 1)):
                world.agenda.at(plan.chaos_s * rng.random(), strike, world)


def _cut(world: World, _: object) -> None:
    """Cut off some workers, in both directions or in one."""
    rng = world.rng
    victims = rng.sample(range(world.plan.workers), rng.randint(1, world.plan.workers))
    directions = rng.choice(((world.up, world.down), (world.up,), (world.down,)))
    links = [direction[worker] for worker in victims for direction in directions]
    for link in links:
        link.cut = True
    world.tally["partitions"] += 1
    world.tell(f"workers {sorted(victims)} are cut off{'' if len(directions) > 1 else ' in one direction'}")
    world.agenda.at(world.agenda.now_s + CUT_S * rng.random() ** 2, _mend, world, (links, victims))


def _mend(world: World, what: tuple[list[Link], list[int]]) -> None:
    links, victims = what
    for link in links:
        link.cut = False
    for worker in victims:
        world.seats[worker].processes[-1].reconnect()


def _victim(world: World) -> Process:
    return world.rng.choice(world.seats).processes[-1]


def _kill(world: World, _: object) -> None:
    """End a process; the server may notice by its connection, and another is started in its seat."""
    process, rng, agenda = _victim(world), world.rng, world.agenda
    if not process.alive:
        return
    process.alive = False
    world.tally["worker crashes"] += 1
    world.tell(f"worker {process.worker} CRASHES")
    if rng.random() < 0.5:
        agenda.at(agenda.now_s + 0.01 * rng.random(), _notice, world, process)
    agenda.at(agenda.now_s + DOWN_S * rng.random() ** 2, _launch, world, process)


def _notice(world: World, process: Process) -> None:
    world.server.broken(process.worker, process.session.incarnation)


def _launch(world: World, process: Process) -> None:
    if world.seats[process.worker].processes[-1] is process and not process.stays_dead:
        world.launch(process.worker)


def _double(world: World, _: object) -> None:
    """Start a process in a seat whose process is thought dead, and is not."""
    process = _victim(world)
    world.tally["two processes in one seat"] += 1
    _launch(world, process)


def _hang(world: World, _: object) -> None:
    """Let a training loop stand still."""
    process = _dispensable(world)
    if process is not None:
        process.hangs = True
        world.tally["hangs"] += 1
        world.tell(f"worker {process.worker} hangs")


def _depart(world: World, _: object) -> None:
    """Let a training function come to its end."""
    process = _dispensable(world)
    if process is not None:
        process.departs = process.stays_dead = True
        world.tally["departures"] += 1
        world.tell(f"worker {process.worker} is going to leave")


def _dispensable(world: World) -> Process | None:
    """Somebody without whom somebody is left who ought to get on."""
    process = _victim(world)
    others = [seat.processes[-1] for seat in world.seats if seat.processes[-1] is not process]
    return process if any(one.gets_on for one in others) else None


def _jump(world: World, _: object) -> None:
    """Set somebody's wall clock an hour forward or back."""
    clock = world.rng.choice([world.server.clock, *(seat.processes[-1].clock for seat in world.seats)])
    clock.jump_s += world.rng.choice((-JUMP_S, JUMP_S))
    world.tally["clock jumps"] += 1


def _crash_server(world: World, _: object) -> None:
    """Let the server crash a few boundaries from now."""
    world.server.crashes_at = world.server.boundaries + world.rng.randint(1, BOUNDARIES)


def _kill_server(world: World, _: object) -> None:
    """Let the server's process die at one of the next boundaries; its memory stays."""
    world.server.end_at(world.server.boundaries + world.rng.randint(1, 4 * BOUNDARIES))


def _switch(world: World, _: object) -> None:
    """Have the run go over to one of its phases."""
    world.server.switch(world.rng.randrange(len(world.plan.strategy.phases)))


def _crash_table_server(world: World, _: object) -> None:
    """Let one that holds rows die, and the server with it."""
    if not world.server.down:
        world.server.lose_one()
