"""What cannot be together, a row each. `plesio.config.rules` has those of a run's settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from plesio.strategy import answers


class Rule(NamedTuple):
    """A row: `settings` cannot be as they are `when` this holds of them, and `why`, which ends with what to do."""

    settings: str
    when: Callable[..., object]
    why: str


def why_not(rules: Sequence[Rule], *given: object) -> str:
    """Why the first rule that is broken is one; nothing if none is. `{0}` in it stands for the first that is given."""
    return next((one.why.format(*given) for one in rules if one.when(*given)), "")


# fmt: off
TOGETHER = (
    Rule("release gather", lambda s: s.gather.in_rounds and not s.release.after_fold,
         "a round holds its workers until the fold; use release=AfterFold()"),
    Rule("release gather", lambda s: s.release.after_fold and s.gather == answers.Each(),
         "each contribution is folded as it comes; use release=Freely()"),
    Rule("release gather", lambda s: s.release.cancel_late and not s.gather.in_rounds,
         "only a round leaves late work behind; use gather=Round(first=m)"),
    Rule("gather admit", lambda s: s.gather.in_rounds and s.admit == answers.Everything(),
         "a late contribution belongs to no later round; use admit=Fresh(within=0)"),
    Rule("send outer",
         lambda s: (s.send.differs, s.send.stepped) != (s.outer.own_optimizer, s.outer.own_optimizer or s.outer.averages),
         "gradients go to UserOptimizer() or InWorker(), parameters to Average(), deltas to Outer()"),
    Rule("outer gather", lambda s: s.outer.in_worker and s.gather != answers.Round(),
         "replicas stay the same by the mean of all; use gather=Round()"),
    Rule("send gather",
         lambda s: s.outer.averages and not (s.outer.by_rate or s.gather.in_rounds or s.every.by_client),
         "a mean of parameters needs all of them; use gather=Round(), or Average(rate)"),
    Rule("every release", lambda s: s.every.by_client and s.release.cancel_late,
         "a client that is late keeps its work; use cancel_late=False"),
    Rule("every send", lambda s: not s.send.stepped and s.every != answers.Steps(1),
         "a gradient is sent at every step; use every=Steps(1), or send=Parameters() or Delta()"),
    Rule("correct send", lambda s: s.send.stepped and s.correct.corrects,
         "corrections are of gradients; use correct=Plain()"),
    # The bound of privacy is on one client's part of a release.
    Rule("send every", lambda s: s.server_noise and s.send.privacy.per_round is None,
         "Privacy without per_round is for sites, which take part in each round; give per_round, or secure="),
    Rule("send every", lambda s: s.server_noise and not s.every.by_client,
         "privacy is for clients; use every=Clients(), as fedavg(privacy=...) does"),
    Rule("send gather", lambda s: s.server_noise and s.gather != answers.Round(),
         "one client could be in a release twice, or be all of it; use fedavg, fedopt or fedprox"),
    Rule("send weigh", lambda s: s.server_noise and s.weigh != answers.Equal(),
         "by samples one client could weigh more than the bound; use weigh=Equal()"),
    Rule("send adopt", lambda s: s.server_noise and (s.send.codec or s.adopt.codec),
         "what a codec leaves out would come on top of the bound; leave the codec out"),
    # What does not add up lies side by side until the fold. Robust folds compare, others multiply.
    Rule("combine gather", lambda s: not s.combine.adds_up and not s.gather.in_rounds,
         "what is added up as it comes cannot be told apart; use gather=Round()"),
    Rule("combine via", lambda s: not s.combine.adds_up and not s.via.at_server,
         "a server combines contributions; use via=Server()"),
    Rule("combine weigh", lambda s: s.combine.robust and s.weigh != answers.Equal(),
         "members count alike, whatever weight they say; use weigh=Equal()"),
    Rule("combine send", lambda s: not s.combine.adds_up and (s.send.codec or s.send.privacy or s.send.secure),
         "it combines plain numbers; leave codec, privacy and secure sums out"),
    Rule("combine send", lambda s: s.combine.products and (not s.send.stepped or s.send.fragments > 1),
         "products are of whole parameters; use send=Parameters() or Delta(), with fragments=1"),
    Rule("combine outer", lambda s: s.combine.products and not s.outer.replaces,
         "momentum, or a rate, would move the factors of a product apart; take local_sgd, or an outer SGD of lr=1.0"),
    # Of secure sums nothing but the sum over the sites of a round is to be had.
    Rule("send every", lambda s: s.send.secure and not s.every.by_client,
         "secure sums are over sites; use every=Clients(), as fedavg(secure=...) does"),
    Rule("send gather", lambda s: s.send.secure and s.gather != answers.Round(least=s.gather.least),
         "what is folded could be a single site's; use fedavg, fedopt or fedprox, without first"),
    Rule("send every", lambda s: s.send.secure and s.send.privacy and s.send.privacy.per_round is not None,
         "per_round is of clients, and sites are in each round; leave it out"),
    Rule("send weigh", lambda s: s.send.secure and not s.send.privacy and s.weigh != answers.BySamples(),
         "sites weigh before they add up; use weigh=BySamples()"),
    Rule("send weigh", lambda s: s.send.secure and s.send.privacy and s.weigh != answers.Equal(),
         "sites weigh before they add up; use weigh=Equal()"),
    Rule("send adopt", lambda s: s.send.secure and (s.send.codec or s.adopt.codec),
         "masks cancel in sums of whole numbers, which no codec keeps; leave the codec out"),
    Rule("send adopt", lambda s: s.send.secure and s.adopt.late,
         "sites agree on masks for a whole round; leave overlap out"),
    Rule("send every", lambda s: s.send.secure and s.send.fragments > 1,
         "sites agree on masks for the whole model; use fragments=1"),
    Rule("send every", lambda s: s.send.fragments > 1 and s.every.by_client,
         "a client's turn begins from a whole version; use fragments=1"),
    Rule("send release", lambda s: s.send.fragments > 1 and s.release.cancel_late,
         "who is called off takes the parameters whole; use cancel_late=False"),
    Rule("adopt send", lambda s: s.adopt.codec and s.send.stepped and not s.send.differs,
         "what a worker is shown is packed for those who send gradients or deltas; use send=Delta()"),
    Rule("adopt correct", lambda s: s.adopt.codec and s.correct.corrects,
         "a correction is by the parameters that a worker had, and these are about the version; leave the codec out of adopt"),
    Rule("adopt outer", lambda s: s.adopt.codec and (s.adopt.ahead or s.outer.in_worker),
         "who computes ahead, or takes the mean gradient, takes it whole; leave the codec out of adopt"),
    Rule("via send", lambda s: s.via.in_shared_memory and s.send.codec,
         "workers write into memory that they share, and nothing travels that could be packed; use codec=None, or async_sgd"),
    Rule("via send", lambda s: s.via == answers.AllReduce("torch") and not s.sends_as_ddp,
         "torch's DDP reduces, in bf16 and fp16 at most; use one of these, or sync_sgd, which packs by any codec"),
    Rule("adopt release", lambda s: s.adopt.codec and s.release.cancel_late,
         "who is called off takes the parameters whole; use cancel_late=False"),
    Rule("adopt send", lambda s: s.adopt.late and s.send.stepped != isinstance(s.adopt, answers.Rebase),
         "adopt=Rebase() is for send=Parameters() or Delta(), ahead=1 for gradients"),
    Rule("adopt outer", lambda s: s.adopt.late and s.outer.in_worker,
         "the worker's own step waits for the mean gradient; use ahead=0"),
    Rule("adopt release", lambda s: s.adopt.late and s.release.cancel_late,
         "what is done while an answer travels belongs to no round; use cancel_late=False"),
    Rule("adopt send", lambda s: s.adopt.blends and not isinstance(s.send, answers.Parameters),
         "who blends sends what it is left with; use send=Parameters()"),
    Rule("correct gather", lambda s: isinstance(s.correct, answers.WorkerMomentum) and s.gather.in_rounds,
         "nobody is stale in a round; use gather=Each() or Buffer(k)"),
    Rule("correct gather",
         lambda s: isinstance(s.correct, answers.DelayCompensated | answers.GapAware) and s.gather != answers.Each(),
         "this correction is for one contribution at a time; use gather=Each(), or correct='dana'"),
    Rule("adopt correct", lambda s: s.adopt.looks_ahead != isinstance(s.correct, answers.WorkerMomentum),
         "look-ahead is over the workers' momenta; use both or neither"),
    Rule("via gather", lambda s: s.via.in_shared_memory and s.gather != answers.Each(),
         "without a server nobody gathers; use gather=Each()"),
    Rule("via release", lambda s: s.via.in_shared_memory and s.release != answers.Freely(),
         "without a server nobody holds a worker; use release=Freely()"),
    Rule("via adopt", lambda s: not s.via.at_server and s.adopt.late,
         "without a server no answer travels; leave ahead out"),
    Rule("via admit", lambda s: s.via.in_shared_memory and s.admit != answers.Everything(),
         "without a server nobody turns a contribution down; use admit=Everything()"),
    Rule("via gather", lambda s: s.via.by_collective and s.gather != answers.Round(),
         "a collective takes everybody; use gather=Round()"),
    Rule("via correct", lambda s: not s.via.at_server and s.correct.corrects,
         "corrections are made by a server; use via=Server()"),
    Rule("via weigh", lambda s: not s.via.at_server and s.weigh != answers.Equal(),
         "contributions are weighed by a server; use via=Server(), or weigh=Equal()"),
    Rule("via send", lambda s: not s.via.at_server and s.send.stepped,
         "what local steps made is folded by a server; use via=Server()"),
)
"""Two answers of a strategy that cannot work together."""
PHASES = (
    Rule("plan", lambda s: s.plan, "it has phases itself"),
    Rule("via", lambda s: s.via.by_collective or s.outer.in_worker,
         "it needs a server; take sync_sgd, which computes the same"),
    Rule("via", lambda s: not s.via.at_server, "workers fold without a server"),
    Rule("every", lambda s: s.every.by_client, "it counts clients"),
    Rule("send", lambda s: s.send.privacy, "what it spends of its privacy is one strategy's"),
    Rule("adopt", lambda s: s.adopt.late, "a worker goes on while its answer travels; leave ahead out, or say overlap=False"),
)
"""Why a strategy cannot be a phase of another one."""
# fmt: on
