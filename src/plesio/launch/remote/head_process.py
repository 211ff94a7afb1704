"""Entry of a head that a worker's process starts (`plesio.launch.remote.head`)."""

from __future__ import annotations

import sys

import cloudpickle

from plesio.errors import PlesioError, RunInterrupted
from plesio.launch.ctrl_c import EndedBySignal, in_words
from plesio.launch.local.listen import DoorSockets
from plesio.launch.newest import say
from plesio.launch.remote import torchrun
from plesio.launch.remote.read import readers_door
from plesio.launch.start import start


def main(told: int) -> None:
    """Read from the input what to run, and write the port that this listens on into `told`."""
    config, evaluate, listening, where = cloudpickle.load(sys.stdin.buffer)
    try:
        door = DoorSockets.open(listening)
        if where.store:
            torchrun.end_with_agent(where.store)
        with open(told, "w") as answer:
            answer.write(str(door.listening.port))
        print(start(config, None, evaluate, door=door, readers=readers_door(config, door)), flush=True)
    except (RunInterrupted, EndedBySignal) as stop:
        say(f"the run's head: {in_words(stop)}")
        sys.exit(128 + stop.number)
    except PlesioError as error:
        sys.exit(f"plesio: the run's head: {error}")
    if where.store:
        torchrun.tell_of_end(where)
