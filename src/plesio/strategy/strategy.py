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


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How tightly workers keep step.

    Args:
        name: what to call it in tables; a recipe's name with its settings.
        every: how long a worker trains on its own: `Steps(h)`, `Seconds(t)`, `PostLocal(h, after)`, `Adaptive(h)`, `Clients()`.
        send: what it sends: `Gradient()`, `Parameters()`, `Delta(codec)`.
        admit: does the contribution count: `Everything()`, `Fresh(within)`.
        weigh: how much: `Equal()`, `Inverse()`, `Polynomial(a)`, `Hinge(a, b)`, `DelayAdaptive()`, `BySamples(a)`.
        gather: when contributions become a version: `Each()`, `Buffer(k, deadline_s)`, `Round(first, grace_s)`.
        combine: how several become one: `Mean()`, `Median()`, `TrimmedMean(part)`, `Krum(f, keep)`.
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
        self._check_release()
        self._check_fold()
        self._check_via()
        if self.plan:
            self._check_plan()

    def _check_kinds(self) -> None:
        for field, kinds in ANSWERS.items():
            value = getattr(self, field)
            if not isinstance(value, get_args(kinds)):
                known = ", ".join(kind.__name__ for kind in get_args(kinds))
                raise StrategyError(f"{self.name}: {field}={value!r} is no answer to that question; known: {known}")

    def _refuse(self, one: str, other: str, why: str) -> None:
        raise StrategyError(
            f"{self.name}: {one}={getattr(self, one)} cannot work with {other}={getattr(self, other)}: {why}"
        )

    def _check_release(self) -> None:
        by_round = self.gather.in_rounds
        if by_round and not self.release.after_fold:
            self._refuse("release", "gather", "a round holds its workers until the fold; use release=AfterFold()")
        if self.release.after_fold and isinstance(self.gather, answers.Each):
            self._refuse("release", "gather", "each contribution is folded as it comes; use release=Freely()")
        if self.release.cancel_late and not by_round:
            self._refuse("release", "gather", "only a round leaves late work behind; use gather=Round(first=m)")
        if by_round and self.admit == answers.Everything():
            self._refuse("gather", "admit", "a late contribution belongs to no later round; use admit=Fresh(within=0)")

    def _check_fold(self) -> None:
        if not isinstance(self.outer, MOVED_BY[type(self.send)]):
            why = "gradients go to UserOptimizer() or InWorker(), parameters to Average(), deltas to Outer()"
            self._refuse("send", "outer", why)
        if self.outer.in_worker and self.gather != answers.Round():
            self._refuse("outer", "gather", "replicas stay the same by the mean of all; use gather=Round()")
        if self.outer.averages and not (self.outer.by_rate or self.gather.in_rounds or self.every.by_client):
            self._refuse(
                "send", "gather", "a mean of parameters needs all of them; use gather=Round(), or Average(rate)"
            )
        if self.every.by_client and self.release.cancel_late:
            self._refuse("every", "release", "a client that is late keeps its work; use cancel_late=False")
        if not self.send.stepped and self.every != answers.Steps(1):
            self._refuse(
                "every", "send", "a gradient is sent at every step; use every=Steps(1), or send=Parameters() or Delta()"
            )
        if self.send.stepped and self.correct != answers.Plain():
            self._refuse("correct", "send", "corrections are of gradients; use correct=Plain()")
        if self.server_noise is not None:
            self._check_privacy(self.server_noise)
        if self.send.control:
            self._check_control()
        if self.combine.robust:
            self._check_robust()
        if self.send.secure is not None:
            self._check_secure()
        if self.send.fragments > 1 and self.every.by_client:
            self._refuse("send", "every", "a client's turn begins from a whole version; use fragments=1")
        if self.send.fragments > 1 and self.release.cancel_late:
            self._refuse("send", "release", "who is called off takes the parameters whole; use cancel_late=False")
        if self.adopt.codec is not None and not self.send.differs:
            self._refuse(
                "adopt", "send", "what a worker is shown is packed for those who send deltas; use send=Delta()"
            )
        if self.adopt.codec is not None and self.release.cancel_late:
            self._refuse("adopt", "release", "who is called off takes the parameters whole; use cancel_late=False")
        if self.adopt.late and self.send.stepped != isinstance(self.adopt, answers.Rebase):
            self._refuse("adopt", "send", "adopt=Rebase() is for send=Parameters() or Delta(), ahead=1 for gradients")
        if self.adopt.late and self.outer.in_worker:
            self._refuse("adopt", "outer", "the worker's own step waits for the mean gradient; use ahead=0")
        if self.adopt.late and self.release.cancel_late:
            self._refuse(
                "adopt", "release", "what is done while an answer travels belongs to no round; use cancel_late=False"
            )
        if self.adopt.blends and not isinstance(self.send, answers.Parameters):
            self._refuse("adopt", "send", "who blends sends what it is left with; use send=Parameters()")
        by_worker = isinstance(self.correct, answers.WorkerMomentum)
        if by_worker and self.gather.in_rounds:
            self._refuse("correct", "gather", "nobody is stale in a round; use gather=Each() or Buffer(k)")
        if not by_worker and self.correct != answers.Plain() and not isinstance(self.gather, answers.Each):
            why = "this correction is for one contribution at a time; use gather=Each(), or correct='dana'"
            self._refuse("correct", "gather", why)
        if self.adopt.looks_ahead != by_worker:
            self._refuse("adopt", "correct", "look-ahead is over the workers' momenta; use both or neither")

    def _check_control(self) -> None:
        """Control variates move as the model does: by the sum of what a whole round's clients say."""
        rate = [one for one in getattr(self.outer, "settings", ()) if one[0] == "lr"]
        mine = self.every, self.send, self.weigh, self.gather, self.adopt, self.outer
        plain = answers.Clients(), answers.Delta(control=True), answers.Equal(), answers.Round(), answers.Replace()
        if not rate or self.combine.robust or mine != (*plain, answers.Outer("SGD", "sum", rate)):
            raise StrategyError(
                f"{self.name}: control variates travel as they are, and move by the sum of a whole round of clients; take "
                "scaffold(), without buffers, codec, privacy or a leash"
            )

    def _check_privacy(self, privacy: answers.Privacy) -> None:
        """The bound is on one client's part of a release."""
        if privacy.per_round is None:
            why = "Privacy without per_round is for sites, which take part in each round; give per_round, or secure="
            self._refuse("send", "every", why)
        if not self.every.by_client:
            self._refuse("send", "every", "privacy is for clients; use every=Clients(), as fedavg(privacy=...) does")
        if self.gather != answers.Round():
            self._refuse(
                "send",
                "gather",
                "one client could be in a release twice, or be all of it; use fedavg, fedopt or fedprox",
            )
        if self.weigh != answers.Equal():
            self._refuse("send", "weigh", "by samples one client could weigh more than the bound; use weigh=Equal()")
        if self.send.codec is not None or self.adopt.codec is not None:
            self._refuse("send", "adopt", "what a codec leaves out would come on top of the bound; leave the codec out")

    def _check_robust(self) -> None:
        """Contributions are compared with each other."""
        if not self.gather.in_rounds:
            self._refuse("combine", "gather", "what is added up as it comes cannot be compared; use gather=Round()")
        if not self.via.at_server:
            self._refuse("combine", "via", "a server compares contributions; use via=Server()")
        if self.weigh != answers.Equal():
            self._refuse("combine", "weigh", "members count alike, whatever weight they say; use weigh=Equal()")
        if self.send.codec is not None or self.send.privacy is not None or self.send.secure is not None:
            self._refuse("combine", "send", "it compares plain numbers; leave codec, privacy and secure sums out")

    def _check_secure(self) -> None:
        """Nothing but the sum over the sites of a round is to be had."""
        privacy, gather, codec = self.send.privacy, self.gather, self.send.codec or self.adopt.codec
        whole = isinstance(gather, answers.Round) and gather.first is None and gather.deadline_s is None
        reasons = {
            "secure sums are over sites; use every=Clients(), as fedavg(secure=...) does": (
                "every",
                self.every.by_client,
            ),
            "what is folded could be a single site's; use fedavg, fedopt or fedprox, without first": ("gather", whole),
            "per_round is of clients, and sites are in each round; leave it out": (
                "every",
                privacy is None or privacy.per_round is None,
            ),
            f"sites weigh before they add up; use weigh={'BySamples' if privacy is None else 'Equal'}()": (
                "weigh",
                self.weigh == (answers.BySamples() if privacy is None else answers.Equal()),
            ),
            "masks cancel in sums of whole numbers, which no codec keeps; leave the codec out": (
                "adopt",
                codec is None,
            ),
            "sites agree on masks for a whole round; leave overlap out": ("adopt", not self.adopt.late),
            "sites agree on masks for the whole model; use fragments=1": ("every", self.send.fragments == 1),
        }
        for why, (other, holds) in reasons.items():
            if not holds:
                self._refuse("send", other, why)

    def _check_via(self) -> None:
        if self.via.at_server:
            return
        if self.via.in_shared_memory and not isinstance(self.gather, answers.Each):
            self._refuse("via", "gather", "without a server nobody gathers; use gather=Each()")
        if self.via.in_shared_memory and self.release != answers.Freely():
            self._refuse("via", "release", "without a server nobody holds a worker; use release=Freely()")
        if self.adopt.late:
            self._refuse("via", "adopt", "without a server no answer travels; leave ahead out")
        if self.via.in_shared_memory and self.admit != answers.Everything():
            self._refuse("via", "admit", "without a server nobody turns a contribution down; use admit=Everything()")
        if self.via.by_collective and self.gather != answers.Round():
            self._refuse("via", "gather", "a collective takes everybody; use gather=Round()")
        if self.correct != answers.Plain():
            self._refuse("via", "correct", "corrections are made by a server; use via=Server()")
        if self.weigh != answers.Equal():
            self._refuse("via", "weigh", "contributions are weighed by a server; use via=Server(), or weigh=Equal()")
        if self.send.stepped:
            self._refuse("via", "send", "what local steps made is folded by a server; use via=Server()")

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
            if why := _no_phase(phase):
                raise StrategyError(f"{self.name}: {phase.name} cannot be a phase: {why}")
        if len({phase.send.fragments for phase in self.phases}) > 1:
            raise StrategyError(f"{self.name}: a model is cut into fragments once; give all phases the same fragments")

    @property
    def steps_in_workers(self) -> bool:
        """Whether workers step their optimizers themselves, in one of its phases."""
        return any(one.send.stepped or one.outer.in_worker or not one.via.at_server for one in self.phases)

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
        return self.gather == answers.Round() and isinstance(self.every, even)

    def goes_on(self, away: bool, momentum: bool = False) -> bool:
        """Whether a worker does while its answers travel; `away`: it is on another host than the server. By default nobody whose
        own optimizer has `momentum` does in rounds: there it costs what it gains, and more (docs/decisions/0015)."""
        by_default = away and not (momentum and self.gather.in_rounds)
        return self.adopt.late and (by_default or not self.adopt.away)

    @property
    def in_memory(self) -> Strategy | None:
        """What computes the same in one host's shared memory, where an all-reduce may go through that."""
        return replace(self, via=answers.Server()) if self.via == answers.AllReduce() else None

    @property
    def as_island(self) -> Strategy:
        """What one worker is told whose processes all-reduce among themselves: it shows the server its parameters."""
        return Strategy(
            name=self.name,
            every=answers.Shown(),
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


MOVED_BY: dict[type, tuple[type, ...]] = {
    answers.Gradient: (answers.UserOptimizer, answers.InWorker),
    answers.Parameters: (answers.Average,),
    answers.Delta: (answers.Outer,),
}
"""What moves the parameters by what was sent."""
LATER = {
    "control", "rows", "combine", "grace_s", "deadline_s", "least", "proximal", "privacy", "secure", "fragments", "over", "ahead"
}  # fmt: skip
"""Answers, and fields of answers, that came later. One that says what is done without it is not written."""
ANSWERS = {
    field: kinds for field, kinds in get_type_hints(Strategy).items() if field not in ("name", "plan", "chooses")
}
"""The answers to each question."""
_DEFAULTS = {one.name: one.default for one in fields(Strategy)}


def _no_phase(one: Strategy) -> str:
    """Why `one` cannot be a phase of another strategy; nothing if it can."""
    reasons = {
        "it has phases itself": bool(one.plan),
        "it needs a server; take sync_sgd, which computes the same": one.via.by_collective or one.outer.in_worker,
        "workers fold without a server": not one.via.at_server,
        "it counts clients": one.every.by_client,
        "what it spends of its privacy is one strategy's": one.send.privacy is not None,
        "a worker goes on while its answer travels; leave ahead and overlap out": one.adopt.late,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _answer(field: str, data: Mapping[str, Any]) -> Any:
    within = {"codec": get_args(answers.Codec), "privacy": (answers.Privacy,), "secure": (answers.SecureSums,)}
    kinds = {kind.__name__: kind for kind in within.get(field) or get_args(ANSWERS[field])}
    values = {key: _answer(key, value) if isinstance(value, Mapping) else value for key, value in data.items()}
    kind = values.pop("is", None)
    if kind not in kinds:
        raise StrategyError(unknown_name(f"answer to {field}", str(kind), kinds))
    return kinds[kind](**values)


def _plain(answer: answers.Answer) -> dict[str, Any]:
    own = {one.name: getattr(answer, one.name) for one in fields(answer)}  # type: ignore[arg-type]
    used = {key: value for key, value in own.items() if key not in LATER or value != getattr(answers.Answer, key, None)}
    values = {key: _plain(value) if isinstance(value, answers.Answer) else value for key, value in used.items()}
    return {"is": type(answer).__name__, **values}
