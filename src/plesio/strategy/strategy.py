"""`Strategy`: one answer to each of the six questions, checked when it is built.

A named algorithm (a recipe, see `plesio.strategy.recipes`) is a function that returns one. Nothing subclasses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Any, get_args, get_type_hints

from plesio.errors import StrategyError, unknown_name
from plesio.strategy import answers
from plesio.strategy.answers.answer import COUNT
from plesio.strategy.choosing import Choosing
from plesio.strategy.renamed import name_today
from plesio.strategy.rules import PHASES, TOGETHER, why_not


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How tightly workers keep step.

    Args:
        name: what to call it in tables; a recipe's name with its settings.
        every: how long a worker trains on its own: `Steps(h)`, `Seconds(t)`, `PostLocal(h, after)`, `Adaptive(h)`, `Aligned(h)`,
            `Clients()`.
        send: what it sends: `Gradient()`, `Parameters()`, `Delta(codec)`.
        admit: does the contribution count: `Everything()`, `Fresh(within)`.
        weigh: how much: `Equal()`, `Inverse()`, `Polynomial(a)`, `Hinge(a, b)`, `DelayAdaptive()`, `BySamples(a)`.
        gather: when contributions become a version: `Each()`, `Buffer(k, deadline_s)`, `Round(first, grace_s)`.
        combine: how several become one: `Mean()`, `Median()`, `TrimmedMean(part)`, `Krum(f, keep)`, `LowRank(a, b)`.
        rows: when rows of tables (`plesio.Table`) step: `WithFold()`, `AtOnce()`.
        correct: what staleness is corrected by: `Plain()`, `WorkerMomentum()`, `DelayCompensated()`, `GapAware()`.
        outer: how they move the parameters: `UserOptimizer(lr_scale)`, `InWorker()`, `Average(rate)`,
            `Outer(name, lr_scale, ...)`.
        release: who may go on: `Freely()`, `Within(clocks)`, `AfterFold(cancel_late)`.
        adopt: what the worker takes back: `Replace()`, `LookAhead()`, `Blend(alpha)`, `Rebase()`.
        via: who folds: `Server()`, `AllReduce(over)`, `SharedMemory()`.
        plan: its phases, if it is to become another in flight, as `plesio.phases` makes it: the version that each begins with
            (None: when it is asked for), and its strategy. The answers are those of the first, which begins with version 0.
        chooses: how the run chooses among its phases by itself, as `plesio.auto` makes it.

    Raises:
        StrategyError: an answer of the wrong kind, or answers that cannot work together.

    >>> from plesio.strategy.answers import Each, Round, Within
    >>> Strategy(name="mine", gather=Each(), release=Within(clocks=2)).name
    'mine'
    >>> Strategy(name="odd", gather=Round(), release=Within(clocks=2))
    Traceback (most recent call last):
    ...
    plesio.errors.StrategyError: odd: release=within 2 clocks cannot work with gather=round of all: ...
    """

    name: str
    every: answers.Every = answers.Steps(1)
    send: answers.Send = answers.Gradient()
    admit: answers.Admit = answers.Everything()
    weigh: answers.Weigh = answers.Equal()
    gather: answers.Gather = answers.Each()
    combine: answers.Combine = answers.Mean()
    rows: answers.RowSteps = answers.WithFold()
    correct: answers.Correct = answers.Plain()
    outer: answers.Moves = answers.UserOptimizer()
    release: answers.Release = answers.Freely()
    adopt: answers.Adopt = answers.Replace()
    via: answers.Via = answers.Server()
    plan: tuple[tuple[int | None, Strategy], ...] = ()
    chooses: Choosing | None = None

    @property
    def recipe(self) -> str:
        """The recipe that it is of: its name without settings. One of the user's own is its own."""
        return self.name.partition("(")[0]

    def __post_init__(self) -> None:
        self._check_kinds()
        for rule in TOGETHER:
            if rule.when(self):
                one, other = rule.settings.split()
                told = f"{one}={getattr(self, one)} cannot work with {other}={getattr(self, other)}"
                raise StrategyError(f"{self.name}: {told}: {rule.why}")
        if self.send.control:
            self._check_control()
        if self.plan:
            self._check_plan()

    def _check_kinds(self) -> None:
        for field, kinds in ANSWERS.items():
            value = getattr(self, field)
            if not isinstance(value, get_args(kinds)):
                known = ", ".join(kind.__name__ for kind in get_args(kinds))
                raise StrategyError(f"{self.name}: {field}={value!r} is no answer to that question; known: {known}")

    def _check_control(self) -> None:
        """Control variates move as the model does: by the sum of what a whole round's clients say."""
        rate = [one for one in getattr(self.outer, "settings", ()) if one[0] == "lr"]
        mine = self.every, self.send, self.weigh, self.gather, self.adopt, self.outer
        plain = answers.Clients(), answers.Delta(control=True), answers.Equal(), answers.Round(), answers.Replace()
        if not rate or not self.combine.adds_up or mine != (*plain, answers.Outer("SGD", "sum", rate)):
            raise StrategyError(
                f"{self.name}: control variates travel as they are, and move by the sum of a whole round of clients; take "
                "scaffold(), without buffers, codec, privacy or a leash"
            )

    def _check_plan(self) -> None:
        first, *later = [begins for begins, _ in self.plan]
        declared = [begins for begins in later if begins is not None]
        sound = all(COUNT.holds(begins) for begins in declared)
        if first != 0 or not sound or declared != sorted(set(declared)):
            raise StrategyError(
                f"{self.name}: phases begin with versions {declared}; give whole numbers of at least 1, each above the one "
                "before, or none for a phase that begins when it is asked for"
            )
        for phase in self.phases:
            if why := why_not(PHASES, phase):
                raise StrategyError(f"{self.name}: {phase.name} cannot be a phase: {why}")
        if len({phase.send.fragments for phase in self.phases}) > 1:
            raise StrategyError(f"{self.name}: a model is cut into fragments once; give all phases the same fragments")

    @property
    def steps_in_workers(self) -> bool:
        """Whether workers step their optimizers themselves, in one of its phases."""
        return any(one.send.stepped or one.outer.in_worker or not one.via.at_server for one in self.phases)

    @property
    def keeps_inner_state(self) -> bool:
        """Whether a worker's own optimizer goes on from one exchange to the next: a client begins with a fresh one."""
        return self.send.stepped and not self.every.by_client

    @property
    def keeps_own(self) -> bool:
        """Whether a checkpoint keeps something of each worker: its optimizer's state, or what packing left out of gradients."""
        return self.send.stepped or (self.send.feeds_back and not self.outer.in_worker)

    @property
    def begins_anew(self) -> bool:
        """Whether all its processes begin anew when one of them dies, and go on with what they held: they are one worker."""
        return self.every.among_ranks

    @property
    def first(self) -> Strategy:
        """The one that a run begins under."""
        return self.phases[0]

    @property
    def phases(self) -> tuple[Strategy, ...]:
        """The strategies that it is in turn; it alone, if it stays as it is."""
        return tuple([one for _, one in self.plan]) or (self,)

    def phase_at(self, version: int) -> int:
        """Which phase the plan has at `version`, by its place in `phases`."""
        begun = [place for place, (begins, _) in enumerate(self.plan) if begins is not None and begins <= version]
        return max(begun, default=0)

    def next_phase_at(self, version: int) -> float:
        """The first version above `version` with which a phase begins; infinity if none does."""
        return min((begins for begins, _ in self.plan if begins is not None and begins > version), default=inf)

    def check_workers(self, workers: int) -> None:
        """Raise `StrategyError` if this strategy cannot run with that many workers."""
        for _, phase in self.plan:
            phase.check_workers(workers)
        if self.chooses is not None:
            self.chooses.check_workers(self.name, [one.name for one in self.phases], workers)
        first = self.gather.first if isinstance(self.gather, answers.Round) else None
        for number, words in (first, f"the first {first}"), (self.gather.least, f"{self.gather.least} or more"):
            if number is not None and number > workers:
                raise StrategyError(
                    f"{self.name}: {words} of {workers} workers will never come; "
                    f"allowed: 1 to {workers}; give a smaller number, or start more workers"
                )
        if self.gather.size(workers) < self.combine.needs:
            raise StrategyError(
                f"{self.name}: a round of {self.gather.size(workers)} contributions, and {self.combine} needs at least "
                f"{self.combine.needs}; start more workers, so that some may be missing"
            )
        if self.send.secure is not None and (why := self.send.secure.check_sites(workers)):
            raise StrategyError(f"{self.name}: {why}; give another threshold, or start more workers")

    @property
    def in_lock_step(self) -> bool:
        """Whether every worker waits for every fold: then nobody gets ahead, and data is shared out evenly."""
        even = answers.Steps, answers.PostLocal, answers.Shown
        return self.gather == answers.Round(least=self.gather.least) and isinstance(self.every, even)

    def goes_on(self, away: bool, momentum: bool = False) -> bool:
        """Whether a worker does while its answers travel; `away`: it is on another host than the server. By default nobody whose
        own optimizer has `momentum` does in rounds: there it costs what it gains, and more (docs/decisions/0015)."""
        by_default = away and not (momentum and self.gather.in_rounds)
        return self.adopt.late and (by_default or not self.adopt.away)

    @property
    def sends_as_ddp(self) -> bool:
        """Whether torch's DDP can reduce what it sends: whole, or in half precision."""
        return self.send.codec is None or isinstance(self.send.codec, answers.Cast)

    @property
    def may_come_late(self) -> bool:
        """Whether what a worker sends may come too late to count."""
        return not self.admit.unconditional and self.gather != answers.Round()

    @property
    def in_memory(self) -> Strategy | None:
        """What does it in one host's shared memory, where an all-reduce may go through that: by the samples of each gradient."""
        return (
            replace(self, via=answers.Server(), weigh=answers.BySamples()) if self.via == answers.AllReduce() else None
        )

    @property
    def as_island(self) -> Strategy:
        """What one worker is told whose processes all-reduce among themselves: it shows the server its parameters."""
        return Strategy(
            name=self.name,
            every=answers.Shown(half=None if self.send.codec is None else str(self.send.codec)),
            send=answers.Parameters(),
            admit=answers.Fresh(within=0),
            gather=answers.Round(),
            outer=answers.Average(),
            release=answers.AfterFold(),
        )

    @property
    def server_noise(self) -> answers.Privacy | None:
        """The privacy whose noise the server adds; with secure sums the sites do."""
        return self.send.privacy if self.send.secure is None else None

    @property
    def steps_at_server(self) -> bool:
        """Whether the user's optimizer runs at the server; else each worker's own does, with the state it has."""
        return self.via.at_server and self.outer.of_user

    @property
    def computes_ahead(self) -> bool:
        """Whether a worker computes the next gradient while the answer to the last one travels."""
        return self.adopt.late and not self.send.stepped

    @property
    def gives_back_mean(self) -> bool:
        """Whether the server gives back the mean gradient, by which each worker's own optimizer steps."""
        return self.via.at_server and self.outer.in_worker

    def as_data(self) -> dict[str, Any]:
        """This strategy as plain data, for a file: each answer as its name and its fields."""
        said = (field for field in ANSWERS if field not in LATER or getattr(self, field) != _DEFAULTS[field])
        data: dict[str, Any] = {field: _plain(getattr(self, field)) for field in said}
        if self.plan:
            data["plan"] = [
                {"name": one.name, **({} if begins is None else {"begins": begins}), **one.as_data()}
                for begins, one in self.plan
            ]
        if self.chooses is not None:
            data["chooses"] = asdict(self.chooses)
        return data

    @classmethod
    def from_data(cls, name: str, data: Mapping[str, Any]) -> Strategy:
        """The strategy of `as_data`.

        >>> plain = Strategy(name="mine")
        >>> Strategy.from_data("mine", plain.as_data()) == plain
        True
        """
        plan = tuple([(one.get("begins"), cls.from_data(one["name"], one)) for one in data.get("plan", ())])
        chooses = Choosing(**data["chooses"]) if "chooses" in data else None
        told = {field: _answer(field, data[field]) for field in ANSWERS if field in data}
        return cls(name=name_today(name), plan=plan, chooses=chooses, **told)

    def answers(self) -> dict[str, str]:
        """Each question with this strategy's answer in words."""
        return {field: str(getattr(self, field)) for field in ANSWERS}


LATER = {
    "control", "rows", "combine", "grace_s", "slack", "deadline_s", "least", "proximal", "privacy", "secure", "fragments", "over",
    "ahead", "Gradient.codec", "Gradient.feedback", "half",
}  # fmt: skip
"""Answers, and fields of answers (all, or one kind), that came later. One that says what is done without it is not written."""
ANSWERS = {
    field: kinds for field, kinds in get_type_hints(Strategy).items() if field not in ("name", "plan", "chooses")
}
"""The answers to each question."""
_DEFAULTS = {one.name: one.default for one in fields(Strategy)}


def _answer(field: str, data: Mapping[str, Any]) -> Any:
    within = {"codec": get_args(answers.Codec), "privacy": (answers.Privacy,), "secure": (answers.SecureSums,)}
    kinds = {kind.__name__: kind for kind in within.get(field) or get_args(ANSWERS[field])}
    values = {key: _answer(key, value) if isinstance(value, Mapping) else value for key, value in data.items()}
    kind = values.pop("is", None)
    if kind not in kinds:
        raise StrategyError(unknown_name(f"answer to {field}", str(kind), kinds))
    return kinds[kind](**values)


def _plain(answer: answers.Answer) -> dict[str, Any]:
    kind, known = type(answer).__name__, {one.name: one.default for one in fields(answer)}  # type: ignore[arg-type]
    own = {key: getattr(answer, key) for key in known}
    own = {key: value for key, value in own.items() if f"{kind}.{key}" not in LATER or value != known[key]}
    used = {key: value for key, value in own.items() if key not in LATER or value != getattr(answers.Answer, key, None)}
    values = {key: _plain(value) if isinstance(value, answers.Answer) else value for key, value in used.items()}
    return {"is": kind, **values}
