"""Settings of a run that cannot be together, and what a strategy cannot do: a row each, as `plesio.strategy.rules` has them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from plesio.errors import ConfigurationError
from plesio.strategy.rules import Rule, why_not


def refuse(rules: Sequence[Rule], *given: object) -> None:
    """Raise `ConfigurationError` if what is given breaks a rule."""
    if why := why_not(rules, *given):
        raise ConfigurationError(why)


# fmt: off
TOGETHER = (
    Rule("evaluate_every evaluate_every_s", lambda c: None not in (c.evaluate_every, c.evaluate_every_s),
         "evaluate_every and evaluate_every_s={0.evaluate_every_s:g} both say how often a run is evaluated: give one"),
    Rule("data strategy", lambda c: c.data == "shards" and c.strategy.chooses,
         "data='shards': {0.strategy.name} compares strategies by how they share the work out; take data='leases'"),
    Rule("data resume", lambda c: c.data == "new" and c.resume is None,
         "data='new' is for a run that goes on from another one: give resume=, the folder of that, or leave it out"),
    Rule("data resume", lambda c: c.data == "new" and c.resume == "newest",
         "data='new' with resume='newest': each start would begin the new data again; give resume= the folder of the run before"),
    Rule("resume runs", lambda c: c.resume == "newest" and c.runs is None,
         "resume='newest' is looked for in the folder runs=; give that, as runs='runs'"),
    Rule("resume checkpoint", lambda c: c.resume == "newest" and c.checkpoint is None,
         "resume='newest' goes on from checkpoints, and this run keeps none; give checkpoint=ps.Checkpoint(every_s=60) "
         "(--checkpoint-every-s 60)"),
    Rule("data strategy", lambda c: c.data == "new" and c.strategy.every.by_client,
         "data='new': under {0.strategy.name} data is the clients', who may bring other data at any time; leave it out"),
    Rule("acknowledge standby", lambda c: c.acknowledge == "standby" and not c.standby,
         "acknowledge='standby': nobody stands by; give standby=1 (--standby 1)"),
    Rule("checkpoint runs", lambda c: c.checkpoint and c.checkpoint.folder is None and c.runs is None,
         "checkpoint=Checkpoint() goes into the run folder; give runs=, or Checkpoint(folder=...)"),
)
"""Settings that cannot be together."""
FUNCTIONS = (
    Rule("standby evaluate on_round", lambda c, evaluate, on_round: c.standby and (evaluate or on_round),
         "standby={0.standby}: a standby has no script, so nobody would call evaluate or on_round there; leave them out, and "
         "have plesio evaluate judge a run with readers="),
    Rule("evaluate_every evaluate", lambda c, evaluate, on_round: c.evaluate_every is not None and evaluate is None,
         "evaluate_every={0.evaluate_every!r} needs evaluate=, a function of the model that returns names and numbers; "
         "give it, or leave evaluate_every out"),
    Rule("until evaluate readers",
         lambda c, evaluate, on_round: c.until.metrics and evaluate is None and on_round is None and not c.readers,
         "until={0.until!r} needs evaluate=, a function of the model that returns names and numbers, or readers=, of whom one "
         "evaluates"),
)
"""Settings, and functions of the user's: `evaluate` and `on_round`."""
SERVERLESS = (
    Rule("workers_max strategy", lambda c: c.seats > c.workers,
         "workers_max={0.workers_max}: under {0.strategy.name} workers fold without a server, among as many as there were at "
         "the beginning; take async_sgd or sync_sgd, or leave workers_max out"),
    Rule("servers strategy", lambda c: c.servers > 1,
         "servers={0.servers}: they hold the rows of tables, and under {0.strategy.name} workers fold without a server; take "
         "sync_sgd or async_sgd, or leave servers out"),
    Rule("checkpoint resume strategy", lambda c: c.checkpoint or c.resume,
         "checkpoints, and going on from one, need a server, and under {0.strategy.name} workers fold without one; take "
         "sync_sgd or async_sgd, or save worker 0's model in the training function"),
)
"""Settings that need a server, where workers fold without one."""
BY_TORCH = (
    Rule("strategy", lambda c: not c.strategy.sends_as_ddp,
         "{0.strategy.name} between hosts or on GPUs: torch's DDP reduces, in bf16 and fp16 at most; take one of these, "
         "or sync_sgd, which packs by any codec"),
    Rule("engine strategy", lambda c: c.place.elsewhere,
         "{0.strategy.name} on Ray: its workers are one group of torch.distributed; take sync_sgd, which computes the same, or "
         "Ray Train's own prepare_model"),
    Rule("workers_max strategy", lambda c: c.seats > c.workers,
         "workers_max={0.workers_max}: under {0.strategy.name} workers are one group of torch.distributed from beginning to "
         "end; take async_sgd or sync_sgd, or leave workers_max out"),
    Rule("servers strategy", lambda c: c.servers > 1,
         "servers={0.servers}: under {0.strategy.name} workers are one group of torch.distributed, without tables; take "
         "async_sgd or sync_sgd, or leave servers out"),
)
"""Settings, where workers all-reduce by torch."""
HERE = (
    Rule("standby", lambda c: c.standby,
         "standby={0.standby}: the workers of ps.run are processes of this host, and die with it. Start the head by plesio serve "
         "(or have torchrun or SLURM do it), and workers by plesio join"),
)
"""Settings, where the run starts its workers itself."""
JOINED = (
    Rule("servers", lambda c, door: door.servers_join and not (0 < door.servers_join <= c.servers and c.servers > 1),
         "{1.servers_join} of {0.servers} servers are to join: give servers= (--servers) 2 or more, of which so many may join"),
    Rule("strategy", lambda c, door: c.strategy.via.in_shared_memory,
         "under {0.strategy.name} workers fold in memory that they share, and these workers come from elsewhere: take "
         "async_sgd, which is the nearest to it"),
    Rule("strategy certs", lambda c, door: c.strategy.every.among_ranks and door.credentials and door.credentials.folder,
         "under {0.strategy.name} torch's gloo moves the gradients, which knows no TLS, and certs= asks for that: take "
         "sync_sgd, which computes the same, or talk in the clear by insecure=True (--insecure)"),
)
"""Settings, where workers come from elsewhere."""
DURABLE = (
    Rule("engine", lambda c: c.simulated, "a simulated server does not die; leave durability out"),
    Rule("strategy", lambda c: not c.strategy.via.at_server or c.strategy.every.among_ranks,
         "under {0.strategy.name} workers fold without a server; take sync_sgd or async_sgd"),
    Rule("privacy", lambda c: c.strategy.send.privacy,
         "the noise of a fold that is done again would be drawn again; leave privacy or durability out"),
    Rule("secure", lambda c: c.strategy.send.secure,
         "what the sites of a round have agreed on dies with the server; leave secure or durability out"),
    Rule("servers", lambda c: c.servers > 1,
         "servers={0.servers}: what table servers are told goes on only with the server that told them; take one"),
    Rule("engine", lambda c: sys.platform != "linux", f"it takes what only Linux has, and this is {sys.platform}"),
)
"""Why nobody could go on from a dead server (`durability`)."""
STANDBY = (
    Rule("engine", lambda c: c.simulated or c.place.elsewhere,
         "standbys follow the head of a run whose workers join it (plesio serve, torchrun, SLURM); leave standby out"),
    Rule("strategy", lambda c: not c.strategy.via.at_server or c.strategy.every.among_ranks or c.strategy.gives_back_mean,
         "under {0.strategy.name} workers fold, and no server has all; take sync_sgd or async_sgd"),
    Rule("strategy", lambda c: c.strategy.every.by_client,
         "what clients keep does not travel to a standby; leave standby out, and keep checkpoints"),
    Rule("strategy", lambda c: c.strategy.plan or c.strategy.chooses,
         "what workers hold does not travel to a standby, and another phase goes on from that; take one strategy"),
    Rule("privacy secure", lambda c: c.strategy.send.privacy or c.strategy.send.secure or c.strategy.server_noise is not None,
         "a standby would draw other noise, and cannot open secure sums; leave privacy and secure, or standby, out"),
    Rule("ranks", lambda c: c.ranks > 1,
         "a worker of several processes does not come back to a standby; leave ranks or standby out"),
    Rule("servers", lambda c: c.servers > 1,
         "what table servers hold does not travel to a standby; leave servers or standby out"),
    Rule("durability", lambda c: c.durability == "process",
         "durability='process' goes on here when the server dies, and standby= elsewhere: choose one"),
)
"""Why nobody could go on from what a standby has (`standby`)."""
ISLANDS = (
    Rule("plan", lambda s: s.plan, "the strategy has phases"),
    Rule("via", lambda s: not s.via.at_server or s.outer.in_worker, "workers fold without a server"),
    Rule("every", lambda s: s.every.by_client, "a client is trained by one process"),
    Rule("every", lambda s: s.every.timed and not s.every.paced,
         "each process would end its local steps by its own clock"),
    Rule("every", lambda s: s.every.proximal > 0, "local steps are held by a leash, which is of whole tensors"),
    Rule("release", lambda s: s.release.cancel_late,
         "each process would notice by itself that its step was called off"),
    Rule("adopt", lambda s: s.goes_on(away=False), "a worker goes on while its answer travels"),
    Rule("adopt", lambda s: s.adopt.blends, "parameters are blended"),
    Rule("send", lambda s: s.send.fragments > 1, "the model is exchanged in fragments"),
    Rule("send adopt", lambda s: s.send.codec or s.adopt.codec, "what is sent is packed"),
)
"""Why a worker cannot be several processes (`ranks`) under a strategy."""
ROUNDS = (
    Rule("via", lambda s: not s.via.at_server, "workers fold without a server"),
    Rule("gather", lambda s: not s.gather.in_rounds, "workers go on without a round"),
    Rule("release", lambda s: s.release.cancel_late, "late work is called off"),
    Rule("outer", lambda s: s.gives_back_mean, "each worker steps its own parameters"),
    Rule("plan", lambda s: s.plan, "it has phases"),
)
"""Why nobody can look at the rounds of a strategy (`on_round`)."""
TABLES = (
    Rule("outer via", lambda s: s.gives_back_mean or not s.via.at_server,
         "workers step there by themselves; take sync_sgd"),
    Rule("every", lambda s: s.every.by_client,
         "the turns of a round's clients would be added up in their rows; take local_sgd"),
    Rule("combine", lambda s: any(phase.combine.robust for phase in s.phases),
         "they are added up, so one worker could move them anywhere; take combine=Mean()"),
    Rule("plan rows", lambda s: len({phase.rows for phase in s.phases}) > 1,
         "its phases step them at other times; give all the same rows="),
)
"""Why a strategy cannot step the rows of tables (`ps.Table`)."""
BY_CLIENT = (
    Rule("state", lambda s, clients: s.send.control and clients.state is None,
         "{0.name}: each client keeps its control variate; say ps.Clients(..., state='keep')"),
    Rule("combine", lambda s, clients: not s.combine.adds_up,
         "ps.Clients and {0.name}: a worker adds up what its clients moved, so what one of them sent is not to be had; use "
         "combine= for sites, whose loop says worker.contribute(samples=...)"),
    Rule("clients_min deadline_s", lambda s, clients: s.gather.in_rounds and (s.gather.least or s.gather.deadline_s),
         "{0.name} ({0.gather}) counts sites, and clients of ps.Clients are not workers: say ps.Clients(clients_min=...), or "
         "fedavg(first=..., deadline_s=...)"),
    Rule("clients_min", lambda s, clients: clients.clients_min and not s.gather.in_rounds,
         "Clients(clients_min=...): {0.name} has no rounds that wait for clients"),
    Rule("per_round privacy", lambda s, clients: s.send.privacy and s.send.privacy.per_round != clients.per_round,
         "Clients(per_round={1.per_round}) and Privacy(per_round={0.send.privacy.per_round}) are to be the same"),
    Rule("available privacy", lambda s, clients: s.send.privacy and clients.available != 1,
         "privacy= counts on each client's chance to be drawn; leave available= out"),
)
"""A strategy and `ps.Clients`."""
REPLAYED = (
    Rule("via", lambda s: not s.via.at_server,
         "under {0.name} workers fold without asking a server, so that nothing recorded the order; strategies with a server "
         "can be replayed"),
    Rule("every", lambda s: s.every.among_ranks,
         "under {0.name} processes all-reduce by torch, and a replay is in one process; a run of allreduce() on one host "
         "without a GPU can be replayed, and computes the same"),
    Rule("privacy", lambda s: s.send.privacy,
         "{0.name} adds noise that is drawn from the operating system and kept nowhere: who could replay it could take it off"),
    Rule("secure", lambda s: s.send.secure,
         "under {0.name} nobody knows what a single site sent, so that a replay could not add it up"),
)
"""Why a strategy cannot be replayed."""
# fmt: on
