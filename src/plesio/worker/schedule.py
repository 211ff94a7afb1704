"""A learning-rate schedule that ends where the training ends.

A schedule counts its calls, as the script on its own would make them: one a batch, one an epoch, or one for every few batches. On
many workers each makes a part of them, a fast one more than a slow one. So a prepared schedule goes, at each call, to where the
script on its own would be when as much of the data is used up.

A script that builds its schedule after `prepare`, from `len(loader)`, has a worker's part of the batches for its length. That one
counts a worker's part, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from fractions import Fraction
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from plesio.attachments.schedules import Scheduling
from plesio.errors import ConfigurationError
from plesio.worker.data.loader import LeasedLoader
from plesio.worker.state import WorkerState
from plesio.worker.warn import warn


class RunSchedule(LRScheduler):
    """The user's scheduler as the training loop sees it; its attributes are the user's.

    A call between two batches moves it to where the run's data is, counted in calls. A call outside of the loop over batches
    moves it to the number of epochs that the loop is through. One that is told a metric, and one without a prepared loader, is
    passed on; the `place`-th of the worker's schedules, it goes on from its state when a run is resumed. `later`: it was built
    with what `prepare` returned.

    Under `ps.Clients` it goes by round, as in a script that calls it once after each: a client begins with its round's rate, and
    calls do nothing. `loader` finds what tells how far the run is, once there is one.
    """

    _by_batch: bool
    _made: int
    _first: Any  # as it was before it was called
    went_on: bool  # from the state that it had when the run was interrupted

    def __init__(
        self,
        schedule: LRScheduler,
        loader: Callable[[], LeasedLoader | None],
        state: WorkerState,
        by_round: bool = False,
        place: int = 0,
        later: bool = False,
    ) -> None:
        if by_round and isinstance(schedule, ReduceLROnPlateau):
            raise ConfigurationError(
                "ReduceLROnPlateau beside ps.Clients: each worker would follow its own clients' metric; prepare a schedule that "
                "goes by round, such as ExponentialLR"
            )
        self.__dict__.update(_schedule=schedule, _loader=loader, _state=state, _calls=0, _made=0, _by_batch=False)
        self.__dict__.update(_by_round=by_round, _first=None, _place=place, went_on=False)
        prepared = loader() if later else None
        self.__dict__["_part"] = prepared.part if prepared is not None and prepared.measured else Fraction(1)
        if (before := state.attachments.of(Scheduling).before.states.get(place)) is not None:
            schedule.load_state_dict(before)
            self.went_on = True

    def step(self, *metric: Any, **named: Any) -> None:
        """Go to where the run is."""
        schedule, loader = self._schedule, self._loader()
        if self._by_round and not metric and not named:
            self._calls += 1
            if self._calls == 2:
                warn(
                    f"{type(schedule).__name__}.step() twice in a client's turn: under ps.Clients a prepared schedule goes by "
                    "round, and calls do nothing; set the rates of single steps in optimizer.param_groups"
                )
            return
        if metric or named or loader is None or isinstance(schedule, ReduceLROnPlateau):
            schedule.step(*metric, **named)
            self._state.attachments.of(Scheduling).keep(self._place, schedule.state_dict())
            return
        self._calls += 1
        self._state.attachments.of(Scheduling).calls += 1
        if loader.within:
            if not self._by_batch:
                self._by_batch = True
                loader.through.append(self._follow)  # others may have taken what is left of the data
                if self._part != 1:
                    warn(
                        f"{type(schedule).__name__} was built after prepare, and len(loader) is one worker's part by then: it "
                        f"counts {self._part} of all batches, to end where the training ends; build it before prepare if its "
                        "numbers are of all the data"
                    )
            self._follow()
        else:
            self.go_to(loader.epochs)

    def go_on(self, of: int) -> None:
        """The run is resumed, with so many schedules: the first batch is to find the rate that the one before it left. One that
        was called about as often as the optimizer stepped goes by batch. In a process that the run was resumed under, it was
        further."""
        state = self._state
        if self._by_batch and self._made:
            before, settings = self._first
            self._schedule.load_state_dict(before)
            for group, kept in zip(self._schedule.optimizer.param_groups, settings, strict=True):
                group.update(kept)
            self._made = 0
        calls = state.attachments.of(Scheduling).calls
        if 0 < state.steps_before <= 2 * calls + 1:
            self._calls = calls // of + 1
            self._schedule.optimizer._opt_called = True  # torch warns of a schedule that is ahead of its optimizer
            self._follow()

    def begin_client(self, round: int) -> None:
        self._calls = 0
        self._schedule.optimizer._opt_called = True
        self.go_to(round)

    def _follow(self) -> None:
        loader = self._loader()
        assert loader is not None, "it tells how far the run is"
        self.go_to(int(loader.position * self._calls * self._part / max(1, loader.read)))

    def go_to(self, calls: int) -> None:
        """Be where the script on its own is after so many calls; it never goes back, nor beyond its end."""
        schedule = self._schedule
        if isinstance(schedule, ReduceLROnPlateau):
            return  # it goes by what it is told
        end = getattr(schedule, "total_steps", None)  # of OneCycleLR, which would raise
        if not self._made:
            groups = schedule.optimizer.param_groups
            settings = [{name: deepcopy(one) for name, one in group.items() if name != "params"} for group in groups]
            self._first = schedule.state_dict(), settings
        while self._made < calls and (end is None or schedule.last_epoch < end):
            schedule.step()
            self.__dict__["_made"] += 1

    def __iter__(self) -> Iterator[RunSchedule]:
        """Itself: `(schedule,) = worker.prepare(schedule)` was the way, when `prepare` gave a tuple for one thing, too."""
        yield self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_schedule"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self._schedule, name, value)


def _passed_on(name: str) -> Any:
    """A method that LRScheduler has, too, and that is to be the user's."""
    return lambda self, *given: getattr(self._schedule, name)(*given)


for _name in ("get_last_lr", "get_lr", "state_dict", "load_state_dict"):
    setattr(RunSchedule, _name, _passed_on(_name))
