"""Strategies are checked when built; an error says what, which value, what is allowed and what to do."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import msgspec
import pytest

import plesio
from conformance.table import OTHERS, OWN, ROWS
from plesio.cli.settings import strategy_of
from plesio.errors import PlesioError, StrategyError
from plesio.launch.remote.link import TakenError
from plesio.strategy import Strategy, answers, recipes
from plesio.strategy.answers import (
    AfterFold,
    AllReduce,
    Average,
    Buffer,
    BySamples,
    DelayCompensated,
    Each,
    Equal,
    Freely,
    Fresh,
    GapAware,
    Gradient,
    Hinge,
    Inverse,
    LookAhead,
    Parameters,
    Plain,
    Polynomial,
    Round,
    Seconds,
    SharedMemory,
    Steps,
    UserOptimizer,
    Within,
    WorkerMomentum,
)
from plesio.strategy.recipes import elsewhere
from plesio.strategy.strategy import ANSWERS
from plesio.transport.wire import DamagedError
from plesio.worker.exchanges.server import SeatLostError

FRESH = Fresh(within=0)


def refusal(build: Callable[[], Any]) -> str:
    with pytest.raises(StrategyError) as caught:
        build()
    assert isinstance(caught.value, PlesioError)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


# Recipes


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_builds_what_its_row_says(name: str) -> None:
    row = ROWS[name]
    strategy = recipes.recipe(name, **row.needed)
    answers = strategy.answers()
    assert tuple(answers[one] for one in ("every", "send", "gather", "release", "via")) == row.answers
    assert strategy.name.startswith(name)
    assert strategy == recipes.RECIPES[name](**row.needed)
    strategy.check_workers(2)
    assert list(answers) == list(ANSWERS)
    assert all(answers.values())


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_no_two_settings_share_a_name(name: str) -> None:
    needed = ROWS[name].needed
    keys = inspect.signature(recipes.RECIPES[name]).parameters
    others = {**OTHERS, **OWN.get(name, {})}
    settings = [{}] + [{key: value} for key in keys for value in others[key]]
    names = [recipes.recipe(name, **{**needed, **one}).name for one in settings]
    assert len(set(names)) == len(settings)


def test_names_show_settings_that_differ_from_defaults() -> None:
    assert recipes.async_sgd(lr_scale="full").name == "async_sgd(lr_scale=full)"
    assert recipes.async_sgd(DelayCompensated(lam=1.0)).name == "async_sgd(correct=DelayCompensated(lam=1.0))"
    assert recipes.async_sgd(WorkerMomentum(), Equal()).name == "async_sgd"
    assert recipes.ringmaster(2, correct="plain").name == "ringmaster(2, correct=plain)"
    assert recipes.hogwild(lr_scale="full").name == "hogwild(lr_scale=full)"


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_documents_its_rule_its_source_and_what_it_raises(name: str) -> None:
    text = inspect.getdoc(recipes.RECIPES[name]) or ""
    assert "Rule" in text
    assert "Source" in text
    assert f">>> {name}(" in text
    if inspect.signature(recipes.RECIPES[name]).parameters:
        assert re.search(r"\n\s*Raises:\n\s+StrategyError: ", text)


@pytest.mark.parametrize("weigh", [one() for one in get_args(answers.Weigh)], ids=repr)
def test_every_weight_is_described_in_words(weigh: answers.Weigh) -> None:
    words = Strategy(name="own", weigh=weigh).answers()["weigh"]
    assert words
    assert type(weigh).__name__ not in words


@pytest.mark.parametrize(
    ("correct", "kind", "look_ahead"),
    [
        ("dana", WorkerMomentum, True),
        ("plain", Plain, False),
        ("delay_compensated", DelayCompensated, False),
        ("gap_aware", GapAware, False),
        (DelayCompensated(lam=1.0), DelayCompensated, False),
        (WorkerMomentum(), WorkerMomentum, True),
    ],
)
@pytest.mark.parametrize("make", [recipes.async_sgd, recipes.bounded_staleness, recipes.ringmaster])
def test_corrections_by_name_or_as_objects(
    make: Callable[..., Strategy], correct: Any, kind: type, look_ahead: bool
) -> None:
    strategy = make(correct=correct)
    assert isinstance(strategy.correct, kind)
    assert isinstance(strategy.adopt, LookAhead) is look_ahead


@pytest.mark.parametrize(
    ("weigh", "kind"),
    [("equal", Equal), ("inverse", Inverse), ("hinge", Hinge), ("polynomial", Polynomial), (Hinge(2.0, 1), Hinge)],
)
def test_weights_by_name_or_as_objects(weigh: Any, kind: type) -> None:
    assert isinstance(recipes.async_sgd(weigh=weigh).weigh, kind)
    assert isinstance(recipes.buffered(2, weigh=weigh).weigh, kind)


def test_local_sgd_weighs_by_samples_unless_it_is_told_otherwise() -> None:
    assert recipes.local_sgd(8).weigh == recipes.local_sgd(Seconds(0.3)).weigh == BySamples()
    assert recipes.local_sgd(8, weigh="equal").weigh == Equal()


def test_ringmaster_admits_staleness_below_r() -> None:
    admit = recipes.ringmaster(3).admit
    assert [admit.admits(staleness) for staleness in range(5)] == [True, True, True, False, False]


def test_recipes_in_lock_step() -> None:
    in_step = [name for name, row in ROWS.items() if recipes.recipe(name, **row.needed).in_lock_step]
    assert sorted(in_step) == ["allreduce", "diloco", "local_sgd", "post_local_sgd", "slowmo", "sync_sgd"]
    assert not recipes.local_sgd(Seconds(0.3)).in_lock_step


@pytest.mark.parametrize(
    ("every", "steps", "seconds", "due"),
    [
        (Steps(1), 1, 0.0, True),
        (Steps(4), 3, 9.0, False),
        (Steps(4), 4, 0.0, True),
        (Seconds(0.5), 1, 0.2, False),
        (Seconds(0.5), 1, 0.4, True),
        (Seconds(0.5), 10, 0.4, False),
        (Seconds(0.5), 10, 0.5, True),
    ],
)
def test_when_an_exchange_is_due(every: answers.Every, steps: int, seconds: float, due: bool) -> None:
    assert every.due(steps, seconds) is due


# Answers that do not fit each other

ROUNDS = {"gather": Round(), "admit": FRESH, "release": AfterFold()}
MEANS = {"send": Parameters(), "outer": Average()}
BAD_PAIRS: list[tuple[dict[str, Any], str]] = [
    (ROUNDS | {"release": Within(2)}, "release=within 2 clocks; gather=round of all; use release=AfterFold()"),
    (ROUNDS | {"release": Freely()}, "release=freely; gather=round of all; use release=AfterFold()"),
    ({"gather": Each(), "release": AfterFold()}, "release=after the fold; gather=each; use release=Freely()"),
    (
        {"gather": Buffer(2), "release": AfterFold(cancel_late=True)},
        "release=after the fold, late work cancelled; gather=buffer of 2; use gather=Round(first=m)",
    ),
    ({"gather": Round(), "release": AfterFold()}, "gather=round of all; admit=everything; use admit=Fresh(within=0)"),
    (ROUNDS | {"send": Parameters()}, "send=parameters; outer=user's optimizer; parameters to Average()"),
    ({"send": Gradient(), "outer": Average()}, "send=gradient; outer=mean; gradients go to UserOptimizer()"),
    (MEANS, "send=parameters; gather=each; use gather=Round()"),
    ({"every": Steps(4)}, "every=every 4 steps; send=gradient; use every=Steps(1)"),
    ({"every": Seconds(1)}, "every=every 1 s; send=gradient; send=Parameters()"),
    ({"gather": Buffer(3), "correct": GapAware()}, "correct=gap-aware; gather=buffer of 3; use gather=Each()"),
    (
        ROUNDS | {"correct": WorkerMomentum(), "adopt": LookAhead()},
        "correct=momentum by worker; gather=round of all; use gather=Each() or Buffer(k)",
    ),
    ({"adopt": LookAhead()}, "adopt=look-ahead; correct=none; use both or neither"),
    ({"correct": WorkerMomentum()}, "adopt=replace; correct=momentum by worker; use both or neither"),
    ({"via": SharedMemory(), "gather": Buffer(2)}, "via=shared memory; gather=buffer of 2; use gather=Each()"),
    ({"via": SharedMemory(), "release": Within(1)}, "via=shared memory; within 1 clocks; use release=Freely()"),
    (
        {"via": SharedMemory(), "correct": DelayCompensated()},
        "via=shared memory; correct=delay compensation (adaptive); use via=Server()",
    ),
    ({"via": SharedMemory(), "admit": FRESH}, "via=shared memory; admit=this version only; use admit=Everything()"),
    ({"via": SharedMemory(), "weigh": Inverse()}, "via=shared memory; weigh=1/staleness; or weigh=Equal()"),
    (ROUNDS | {"via": AllReduce(), "weigh": BySamples()}, "via=all-reduce; weigh=by samples; or weigh=Equal()"),
    (ROUNDS | MEANS | {"via": AllReduce(), "every": Steps(8)}, "via=all-reduce; send=parameters; use via=Server()"),
    ({"via": AllReduce()}, "via=all-reduce; gather=each; use gather=Round()"),
    (ROUNDS | {"via": AllReduce(), "gather": Round(2)}, "via=all-reduce; gather=round, first 2; use gather=Round()"),
]


@pytest.mark.parametrize(("answers", "said"), BAD_PAIRS, ids=[said for _, said in BAD_PAIRS])
def test_incompatible_answers_are_refused(answers: dict[str, Any], said: str) -> None:
    message = refusal(lambda: Strategy(name="mine", **answers))
    assert message.startswith("mine: ")
    for part in [*said.split("; "), "cannot work with"]:
        assert part in message


@pytest.mark.parametrize("field", ANSWERS)
@pytest.mark.parametrize("value", [3, None, "each", Round], ids=repr)
def test_an_answer_of_the_wrong_kind_is_refused(field: str, value: Any) -> None:
    message = refusal(lambda: Strategy(name="mine", **{field: value}))
    assert message.startswith(f"mine: {field}={value!r} is no answer to that question; known: ")
    assert all(kind.__name__ in message for kind in ANSWERS[field].__args__)


# Refusals, word by word

TOO_FEW = "the first 3 of 2 workers will never come; allowed: 1 to 2; give a smaller number, or start more workers"
SYNC, ASYNC = recipes.sync_sgd(), recipes.async_sgd()
REFUSED = [
    (lambda: recipes.bounded_staleness(-1), "bounded_staleness(s=-1): s must be a whole number of at least 0"),
    (lambda: recipes.bounded_staleness(1.5), "bounded_staleness(s=1.5): s must be a whole number of at least 0"),
    (lambda: recipes.buffered(0), "Buffer(k=0): k must be a whole number of at least 1"),
    (lambda: recipes.buffered(True), "Buffer(k=True): k must be a whole number of at least 1"),
    (lambda: recipes.rennala(0), "Buffer(k=0): k must be a whole number of at least 1"),
    (lambda: recipes.first_of(0), "first_of(m=0): m must be a whole number of at least 1"),
    (lambda: recipes.quorum(0), "quorum(k=0): k must be a whole number of at least 1"),
    (lambda: recipes.quorum(2, grace_s=0), "Round(grace_s=0): grace_s must be a number above 0"),
    (
        lambda: recipes.decoupled(4, lr=0.1, outer=answers.Outer("Adam", "work", lr=0.01)),
        "decoupled(every=4, lr=0.1, outer=Adam(lr=0.01), lr x part of the work): outer has a rate and a momentum of its own; "
        "leave lr and momentum out",
    ),
    *[
        (
            partial(recipe, combine=None),
            "unknown combine 'None'; known: krum, low_rank, mean, median, trimmed_mean",
        )
        for recipe in (recipes.diloco, recipes.decoupled, recipes.local_sgd, recipes.fedavg)
    ],
    (lambda: recipes.decoupled(quorum=0), "decoupled(quorum=0): quorum must be a whole number of at least 1"),
    (
        lambda: recipes.decoupled(4, 4, combine="krum"),
        "decoupled(every=4, quorum=4, combine=krum): Krum (f=1) needs 5 contributions; give quorum=5 or more",
    ),
    *[
        (
            partial(recipe, combine="median", codec="int8"),
            f"{recipe.__name__}(combine=median, codec=int8): combine=median cannot work with send=delta, int8: it combines "
            "plain numbers; leave codec, privacy and secure sums out",
        )
        for recipe in (recipes.diloco, recipes.decoupled)
    ],
    (
        lambda: recipes.diloco(combine="mode"),
        "unknown combine 'mode'; known: krum, low_rank, mean, median, trimmed_mean",
    ),
    (
        lambda: answers.Round(slack=0.5),
        "Round(slack=0.5): it is the grace of a round's first; give first, and no grace_s",
    ),
    (lambda: recipes.quorum(2, within=-1), "Fresh(within=-1): within must be a whole number of at least 0"),
    (
        lambda: Round(grace_s=0.5),
        "Round(grace_s=0.5): a round of all waits for everybody, and has no grace; give first, too",
    ),
    (lambda: recipes.ringmaster(0), "ringmaster(r=0): r must be a whole number of at least 1"),
    (lambda: recipes.ringmaster(1.0), "ringmaster(r=1.0): r must be a whole number of at least 1"),
    (lambda: recipes.local_sgd(0), "Steps(steps=0): steps must be a whole number of at least 1"),
    (lambda: recipes.local_sgd(0.3), "local_sgd(every=0.3): whole steps, such as every=16, or every=ps.Seconds(0.3)"),
    (lambda: recipes.local_sgd("8h"), "every=8h: write whole steps, such as every=16, or seconds, such as every=0.3s"),
    (lambda: Seconds(0), "Seconds(seconds=0): seconds must be a number above 0"),
    (lambda: Seconds(float("inf")), "Seconds(seconds=inf): seconds must be a number above 0"),
    (lambda: Seconds(float("nan")), "Seconds(seconds=nan): seconds must be a number above 0"),
    (lambda: Round(first=0), "Round(first=0): first must be a whole number of at least 1"),
    (lambda: Within(-1), "Within(clocks=-1): clocks must be a whole number of at least 0"),
    (lambda: Polynomial(-0.5), "Polynomial(a=-0.5): a must be a number of at least 0"),
    (lambda: Hinge(a=0), "Hinge(a=0): a must be a number above 0"),
    (lambda: Hinge(b=-1), "Hinge(b=-1): b must be a whole number of at least 0"),
    (lambda: DelayCompensated(lam=-1), "DelayCompensated(lam=-1): lam must be a number of at least 0"),
    (lambda: DelayCompensated(eps=0), "DelayCompensated(eps=0): eps must be a number above 0"),
    (lambda: DelayCompensated(decay=1), "DelayCompensated(decay=1): decay must be a number of at least 0 and below 1"),
    (lambda: GapAware(decay=-0.1), "GapAware(decay=-0.1): decay must be a number of at least 0 and below 1"),
    (lambda: GapAware(decay=1.5), "GapAware(decay=1.5): decay must be a number of at least 0 and below 1"),
    (lambda: UserOptimizer("shares"), "UserOptimizer(lr_scale='shares'): lr_scale must be 'share' or 'full'"),
    (lambda: recipes.async_sgd(lr_scale="none"), "UserOptimizer(lr_scale='none'): lr_scale must be 'share' or 'full'"),
    (lambda: recipes.recipe("first_of"), "first_of needs a value for m; for 4 workers, say, first_of(m=3)"),
    (lambda: recipes.first_of(3).check_workers(2), f"first_of(3): {TOO_FEW}"),
    (lambda: recipes.quorum(3).check_workers(2), f"quorum(3): {TOO_FEW}"),
    (lambda: recipes.phases(SYNC, (5, recipes.first_of(3))).check_workers(2), f"first_of(3): {TOO_FEW}"),
    (
        lambda: recipes.recipe("bounded_stalenes"),
        f"unknown strategy 'bounded_stalenes'; known: {', '.join(sorted(recipes.RECIPES))}; "
        "did you mean 'bounded_staleness'?",
    ),
    (
        lambda: recipes.recipe("async_sgd", corect="plain"),
        "unknown setting of async_sgd 'corect'; known: ahead, codec, correct, lr_scale, weigh; did you mean 'correct'?",
    ),
]


@pytest.mark.parametrize(("build", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_is_refused(build: Callable[[], Any], said: str) -> None:
    assert refusal(build) == said


def test_a_grace_is_told_in_words_and_kept_in_files() -> None:
    strategy = recipes.quorum(2, grace_s=0.5)
    assert strategy.answers()["gather"] == "round, first 2 and 0.5 s more"
    assert Strategy.from_data(strategy.name, strategy.as_data()) == strategy
    assert recipes.quorum(2).as_data()["gather"] == {"is": "Round", "first": 2}, "as older versions read it"


@pytest.mark.parametrize("name", sorted(set(recipes.RECIPES) - set(recipes.USUAL)))
def test_recipes_with_defaults_run_with_one_worker(name: str) -> None:
    recipes.recipe(name).check_workers(1)


def test_as_many_as_the_first_m_are_enough() -> None:
    recipes.first_of(3).check_workers(3)
    recipes.phases(SYNC, (5, recipes.first_of(3))).check_workers(3)
    assert [recipes.recipe("quorum", n).gather.first for n in (1, 2, 4, 5)] == [1, 2, 3, 3]


# Phases


def phased() -> Strategy:
    return recipes.phases(SYNC, (1000, recipes.local_sgd(16)), recipes.diloco(50), (5000, ASYNC))


def test_a_strategy_with_phases_answers_as_its_first() -> None:
    assert phased().name == "phases(sync_sgd, 1000: local_sgd(every 16 steps), diloco, 5000: async_sgd)"
    assert phased().recipe == "phases"
    assert phased().answers() == recipes.sync_sgd().answers()
    assert [one.name for one in phased().phases] == ["sync_sgd", "local_sgd(every 16 steps)", "diloco", "async_sgd"]
    assert recipes.sync_sgd().phases == (recipes.sync_sgd(),)


def test_phases_begin_with_their_versions() -> None:
    versions = (0, 999, 1000, 4999, 5000, 10**9)
    assert [phased().phase_at(version) for version in versions] == [0, 0, 1, 1, 3, 3]
    assert [phased().next_phase_at(version) for version in versions[:5]] == [1000, 1000, 5000, 5000, float("inf")]
    assert recipes.sync_sgd().next_phase_at(0) == float("inf")


def test_phases_are_data_and_words() -> None:
    assert Strategy.from_data(phased().name, msgspec.json.decode(msgspec.json.encode(phased().as_data()))) == phased()
    assert strategy_of(phased().name, 4) == phased()


def test_workers_wait_for_answers_in_phases() -> None:
    """What is done while an answer travels would be of no phase."""
    later = [recipes.diloco(50, codec="int8"), recipes.local_sgd(16), recipes.async_local_sgd(8)]
    for given, phase in zip(later, recipes.phases(recipes.sync_sgd(), *later).phases[1:], strict=True):
        assert given.adopt.late
        assert not phase.adopt.late
        assert phase.adopt.codec == given.adopt.codec
        assert (phase.send, phase.outer, phase.name) == (given.send, given.outer, given.name)


NO_PHASES = [
    ((SYNC,), "say what comes later, too"),
    (("sync_sgd", ASYNC), "'sync_sgd' is no strategy; give one, such as ps"),
    ((SYNC, (5, "async_sgd")), "'async_sgd' is no strategy; give one"),
    ((SYNC, [5, ASYNC]), "[5, async_sgd] is no strategy; give one"),
    ((SYNC, (0, ASYNC)), "begin with versions [0]; give whole"),
    ((SYNC, (True, ASYNC)), "begin with versions [True]"),
    (((5, SYNC), (5, SYNC)), "no strategy; give one"),
    (
        (SYNC, (5, ASYNC), (5, SYNC)),
        "begin with versions [5, 5]; give whole numbers of at least 1, each above the one before",
    ),
    ((SYNC, recipes.hogwild()), "hogwild cannot be a phase: workers fold with"),
    ((SYNC, recipes.allreduce()), "take sync_sgd, which computes the same"),
    ((recipes.allreduce("torch"), SYNC), "allreduce(over=torch) cannot be a"),
    ((SYNC, recipes.fedavg()), "fedavg cannot be a phase: it counts clients"),
    ((SYNC, phased()), "async_sgd) cannot be a phase: it has phases itself"),
    ((SYNC, recipes.async_sgd(ahead=1)), "leave ahead out, or say overlap=False"),
    ((SYNC, recipes.diloco(8, fragments=2)), "the same fragments"),
]


@pytest.mark.parametrize(("phases", "said"), NO_PHASES, ids=[said for _, said in NO_PHASES])
def test_what_cannot_be_a_phase_is_refused(phases: tuple[Any, ...], said: str) -> None:
    assert said in refusal(lambda: recipes.phases(*phases))


# Names nobody knows


ELSEWHERE = {
    "allreduce": ("ddp", "DistributedDataParallel", "horovod"),
    "async_sgd": ("asgd", "downpour", "parameter server"),
    "bounded_staleness": ("ssp",),
    "elastic_averaging": ("easgd",),
    "hogwild": ("hogwild!",),
    "local_sgd": ("Local-SGD",),
}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, f"plesio calls it {own}") for own, names in ELSEWHERE.items() for name in names),
        ("zero", "plesio does not shard a model"),
        ("FSDP", "plesio does not shard a model"),
        ("local_sgd(every=16)", "in Python, write it without quotes: ps.local_sgd(every=16)"),
        ("diloco(codec=int8, h=8)", "in Python, write it without quotes: ps.diloco(codec=int8, every=8)"),
        ("auto(sync_sgd, async_sgd)", "in Python, give strategies: ps.auto([ps.sync_sgd(), ps.async_sgd()])"),
        ("phases()", "in Python, give strategies: ps.phases(ps.sync_sgd(), (1000, ps.local_sgd(16)))"),
    ],
)
def test_a_name_from_elsewhere_is_pointed_on(name: str, words: str) -> None:
    assert refusal(lambda: recipes.recipe(name)).startswith(f"unknown strategy {name!r}; {words}")
    if name.isalpha():
        with pytest.raises(AttributeError, match=words.replace("it ", "it ps.")):
            getattr(plesio, name)


def test_what_is_named_for_other_names_exists() -> None:
    for own in elsewhere.SAME:
        strategy_of(own, 4)
    names = " ".join([*elsewhere.SAME.values(), elsewhere.SHARDED]).split()
    assert len(set(names)) == len(names)
    assert not set(names) & set(recipes.RECIPES) - {"hogwild"}


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_an_unknown_keyword_of_a_recipe_is_answered_with_the_known_ones(name: str) -> None:
    message = refusal(lambda: getattr(plesio, name)(evry=3))
    assert message.startswith(f"unknown setting of {name} 'evry'; ")
    assert ("did you mean 'every'?" in message) == ("every" in inspect.signature(recipes.RECIPES[name]).parameters)


def from_file(gather: dict[str, Any]) -> Strategy:
    return Strategy.from_data("own", {**SYNC.as_data(), "gather": gather})


UNKNOWN = [
    (lambda: recipes.async_sgd("danna"), "unknown correction 'danna'; known: dana, delay_compensated, "),
    (lambda: recipes.bounded_staleness(correct="gap"), "unknown correction 'gap'; known: dana"),
    (
        lambda: recipes.async_sgd(weigh="hing"),
        f"unknown weight 'hing'; known: {', '.join(sorted(recipes.asynchronous.WEIGHTS))}; ",
    ),
    (lambda: recipes.buffered(correct="gap_aware"), "buffered(k=2, correct=gap_aware): correct=gap-aware cannot work"),
    (lambda: recipes.buffered(weigh="poly"), "unknown weight 'poly'; known: "),
    (lambda: Strategy(name="mine", gather=Within(2)), "mine: gather=Within(clocks=2) is no answer to that question"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("build", "said"), UNKNOWN, ids=[said for _, said in UNKNOWN])
def test_an_unknown_correction_or_weight_lists_the_known_ones(build: Callable[[], Any], said: str) -> None:
    assert refusal(build).startswith(said)


def test_an_unknown_answer_in_a_file_lists_the_known_ones() -> None:
    message = refusal(lambda: from_file({"is": "Rounds", "first": None}))
    assert "answer to gather" in message
    assert "'Rounds'" in message
    assert "Round" in message.replace("'Rounds'", "")
    assert "answer to gather" in refusal(lambda: from_file({"first": None}))


def test_settings_reach_the_recipe() -> None:
    assert recipes.recipe("buffered", k=3, weigh="hinge") == recipes.buffered(3, weigh="hinge")
    assert recipes.recipe("first_of", m=2, cancel_late=False).release == AfterFold(cancel_late=False)


RAY = "plesio.launch.remote.ray_"
"""These need Ray, which is an extra."""


@pytest.mark.thorough
def test_every_public_error_is_exported() -> None:
    """But for those of the command line, of one package, and what a remote worker's own code catches."""
    for module in pkgutil.walk_packages(plesio.__path__, "plesio."):
        if not module.name.startswith(("plesio.sparse.", "plesio.cli", "plesio.__main__", "plesio.ray", RAY)):
            importlib.import_module(module.name)

    def below(kind: type[BaseException]) -> set[type[BaseException]]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    caught = {DamagedError, SeatLostError, TakenError}
    known = {
        one for one in below(PlesioError) if not one.__module__.startswith(("plesio.cli", "plesio.sparse"))
    } - caught
    assert {one.__name__ for one in known if one.__module__.startswith("plesio.")} <= set(plesio.__all__)
    assert {"EvaluateError", "JournalError", "StepCancelled"} <= {one.__name__ for one in known}
    assert all(getattr(plesio, one.__name__) is one for one in known if one.__module__.startswith("plesio."))


@pytest.mark.parametrize("name", ["local_sgd", "diloco", "elastic_averaging", "fedavg", "fedasync"])
@pytest.mark.parametrize("value", ["no", "yes", 1])
def test_overlap_is_true_false_or_none(name: str, value: object) -> None:
    assert refusal(lambda: recipes.recipe(name, overlap=value)).startswith(
        f"overlap={value!r}: overlap must be True, False"
    )
    assert not recipes.recipe("fedavg", overlap=None).adopt.late


# `every` was once called `h` in some recipes


@pytest.mark.parametrize("name", ["diloco", "slowmo", "async_local_sgd"])
def test_a_setting_is_taken_by_its_former_name_and_told(name: str) -> None:
    said = f"setting of {name} 'h' is now 'every': write every=8"
    with pytest.warns(FutureWarning, match=said):
        assert getattr(plesio, name)(h=8) == getattr(plesio, name)(every=8)
    with pytest.warns(FutureWarning, match=said):
        assert strategy_of(f"{name}(h=8)", 4) == recipes.recipe(name, every=8)
    with pytest.warns(FutureWarning, match=said):
        assert "'every' is given twice" in refusal(lambda: recipes.recipe(name, h=8, every=9))


def test_a_stored_strategy_has_the_name_of_today() -> None:
    now = plesio.phases(recipes.recipe("sync_sgd"), (9, recipes.recipe("diloco", every=8)))
    data = msgspec.json.encode(now.as_data()).replace(b"(every=", b"(h=")
    assert b"diloco(h=8)" in data
    assert Strategy.from_data(now.name.replace("(every=", "(h="), msgspec.json.decode(data)) == now
    assert Strategy.from_data("own(h=8)", {}).name == "own(h=8)"


@pytest.mark.parametrize(
    "text", ["diloco(every=3)", "slowmo(every=0.3s)", "elastic_averaging(every=3)", "post_local_sgd(every=3)"]
)
def test_every_is_read_as_it_is_shown(text: str) -> None:
    assert strategy_of(text, 4).name == text
