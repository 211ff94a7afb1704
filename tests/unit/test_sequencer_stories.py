"""What the sequencer decides, by an example each: `support.stories` says how to read them, and checks every word.

The sequencer's promises under random events are in `test_sequencer.py`.
"""

from __future__ import annotations

import pytest

from plesio.core.events import Joined, Leased, LeaseWanted, Left
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.strategy import recipes
from support.sequencing import only
from support.stories import Story, stories, told

# Who visits which batches when contributions are dropped or workers die

DATA = """
a dead worker's batches are visited by others | async_sgd | 2 workers
    lease 0 most=2 -> lend 0 0/0 0/2
    die 0, lease 1 most=10 -> lend 1 0/0 0/2 0/4 0/1 0/3 0/5
    push 1 batches=6 -> fold v1 [1#1 tau0 1.00] lr 0.50; go 1#1@v1; done 6
batches of a frozen worker that is to leave are for whoever finds nothing else | async_sgd | 2 workers
    lease 1 most=2 -> lend 1 0/1 0/3
    scale 1, lease 0 most=10 -> lend 0 0/0 0/2 0/4 0/5 at epoch 0.33
    lease 0 most=10 -> lend 0 nothing at epoch 1.00
    at 2, lease 0 most=10 -> evict 1 after 2; lend 0 0/1 0/3 at epoch 1.00
batches are done when folded and skipped when non-finite | buffered(k=2)
    lease 0 most=3 -> lend 0 0/0 0/3 0/1
    push 0 batches=1 -> hold 0#1 x 1.00; go 0#1@v0
    push 0 batches=1 finite=False -> drop 0#2 not finite 32; go 0#2@v0 not finite; skipped 1
    push 0 batches=1 -> hold 0#3 x 1.00; fold v1 [0#1 tau0 0.50, 0#3 tau0 0.50] lr 0.67 held of 2.00; go 0#3@v1;
        done 2
a stale contribution's batches are leased again | ringmaster(1) | 2 workers
    lease 1 -> lend 1 0/1
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.50; go 0#1@v1
    push 1 batches=1 -> drop 1#1 stale tau1 32; go 1#1@v1 stale tau1
    lease 0 -> lend 0 0/1
unused batches are leased to others | async_sgd | 2 workers
    lease 0 most=3 -> lend 0 0/0 0/2 0/4
    lease 0 most=0 unused=2 -> lend 0 nothing at epoch 0.17
    lease 1 most=10 -> lend 1 0/2 0/4 0/1 0/3 0/5 at epoch 0.17
    push 0 batches=1 -> fold v1 [0#1 tau0 1.00] lr 0.50; go 0#1@v1; done 1
an older incarnation cannot return the newer's data | async_sgd | 2 workers
    join 0 -> go 0#0@v0
    lease 0 most=2 -> lend 0 0/0 0/2
    abandon 0/1 batches=1, lease 0/1 unused=1, push 0 batches=2 -> fold v1 [0'2#1 tau0 1.00] lr 0.50; go 0#1@v1;
        done 2
    die 0, abandon 0 batches=1, lease 0, lease 1 most=10 -> lend 1 0/4 0/1 0/3 0/5 at epoch 0.33
reported versions are counted | hogwild | 2 workers
    lease 0 most=2 -> lend 0 0/0 0/2
    report 0 versions=3 batches=2 -> done 2
    join 0 -> go 0#0@v3
    report 0/1 versions=3 batches=2, join 1 -> go 1#0@v3
batches that came back are lent in turn | async_sgd
    lease 0 most=2 -> lend 0 0/0 0/3
    lease 1 most=2 -> lend 1 0/1 0/4 at epoch 0.33
    die 1, die 0, lease 2 most=4 -> lend 2 0/0 0/1 0/3 0/4
"""

# Silent workers, repeated messages and messages of the dead

SILENT_OR_TWICE = """
a silent worker is evicted only while others wait for it | sync_sgd | 2 workers | silence 10
    tick 1000, push 0, tick 1000 -> evict 1 after 1000; fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1 freed
silence up to the limit is allowed | sync_sgd | 2 workers | silence 10
    push 0, tick 10, lease 1 -> lend 1 0/1
    tick 20, tick 20.5 -> evict 1 after 10.5; fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1 freed
waiting for the fold is no silence | sync_sgd | 2 workers | silence 10
    push 0, at 9, push 1 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1
    push 1, tick 12, tick 19.5 -> evict 0 after 10.5; fold v2 [1#2 tau0 1.00] lr 1.00; go 1#2@v2 freed
a silent worker ahead of the slowest is not evicted | bounded_staleness(1) | silence 10
    push 1 -> fold v1 [1#1 tau0 1.00] lr 0.33; go 1#1@v1
    at 8, push 0 -> fold v2 [0#1 tau1 1.00] lr 0.33; go 0#1@v2 tau1
    push 0 -> fold v3 [0#2 tau0 1.00] lr 0.33
    lease 2 -> lend 2 0/2
    tick 11, tick 18.5 -> evict 2 after 10.5; go 0#2@v3 freed
all silent workers are evicted together | sync_sgd | silence 10
    push 1, tick 11 -> evict 0 after 11; evict 2 after 11; fold v1 [1#1 tau0 1.00] lr 1.00; go 1#1@v1 freed
a silent worker is not evicted while another goes on | async_sgd | silence 10
    finish 0, at 95, push 1 -> fold v1 [1#1 tau0 1.00] lr 0.33; go 1#1@v1
    tick 100, tick 105.5 -> evict 1 after 10.5; evict 2 after 105.5
a repeated push is ignored | async_sgd
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33; go 0#1@v1
    push 0 number=1 -> drop 0#1 duplicate
a push of a departed worker is fenced | async_sgd
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33; go 0#1@v1
    die 0, push 0 number=1 -> drop 0#1 fenced
    push 0 -> drop 0#2 fenced
a push of an evicted worker is fenced | sync_sgd | 2 workers | silence 10
    push 0, tick 11 -> evict 1 after 11; fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1 freed
    push 1 -> drop 1#1 fenced
a newer incarnation fences the older one | async_sgd
    join 0 -> go 0#0@v0
    push 0/1 -> drop 0#1 fenced
    push 0 number=1 -> fold v1 [0'2#1 tau0 1.00] lr 0.33; go 0#1@v1
    join 0/1 -> drop 0#0 fenced
    die 0/1, push 0 -> fold v2 [0'2#2 tau0 1.00] lr 0.33; go 0#2@v2
a repeated join is fenced and its worker keeps its seat | async_sgd
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33; go 0#1@v1
    join 0/1 -> drop 0#0 fenced
    push 0 -> fold v2 [0#2 tau0 1.00] lr 0.33; go 0#2@v2
a push with a number far ahead is refused | async_sgd
    push 0 number=1000 -> drop 0#1000 duplicate
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33; go 0#1@v1
an asynchronous worker may be silent forever | async_sgd | 2 workers | silence 10
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.50; go 0#1@v1
    tick 9000, at 20000, push 0 -> fold v2 [0#2 tau0 1.00] lr 0.50; go 0#2@v2
    tick 20000
silent workers are evicted when all others finished | async_sgd | hogwild | bounded_staleness | buffered | silence 10
    lease 1 most=2 -> lend 1 0/1 0/4
    finish 0, at 100, lease 2 -> lend 2 0/0 at epoch 0.33
    finish 2, tick 110, tick 110.5 -> evict 1 after 110.5
    tick 9000
silent workers of rounds are evicted, too | sync_sgd | allreduce | silence 10
    lease 1 most=2 -> lend 1 0/1 0/4
    finish 0, at 100, lease 2 -> lend 2 0/0
    finish 2, tick 110, tick 110.5 -> evict 1 after 110.5
    tick 9000
a silent worker is not evicted because others died | local_sgd(every=8) | silence 10
    die 0, tick 9000
a rejoined worker has not finished | async_sgd | 2 workers | silence 10
    finish 0, join 0 -> go 0#0@v0
    tick 9000
the only worker of a run may be silent forever | sync_sgd | 1 workers | silence 10
    tick 9000, join 0 -> go 0#0@v0
    tick 20000
"""

# Without rounds: who goes on, and how far

FREE = """
ringmaster discards staleness r and restarts the worker | ringmaster(2)
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33; go 0#1@v1
    push 2 -> fold v2 [2#1 tau1 1.00] lr 0.33; go 2#1@v2 tau1
    push 1 -> drop 1#1 stale tau2 32; go 1#1@v2 stale tau2
    push 1 -> fold v3 [1#2 tau0 1.00] lr 0.33; go 1#2@v3
a dead worker's held contribution is folded | buffered(k=2)
    push 0 -> hold 0#1 x 1.00; go 0#1@v0
    die 0, push 1 -> hold 1#1 x 1.00; fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 0.67 held of 2.00; go 1#1@v1
bounded staleness of zero keeps all within one clock | bounded_staleness(0)
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33
    push 1 -> fold v2 [1#1 tau1 1.00] lr 0.33
    push 2 -> fold v3 [2#1 tau2 1.00] lr 0.33; go 0#1@v3 freed; go 1#1@v3 tau1 freed; go 2#1@v3 tau2
bounded staleness lets a worker get s ahead and no more | bounded_staleness(2) | 2 workers
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.50; go 0#1@v1
    push 0 -> fold v2 [0#2 tau0 1.00] lr 0.50; go 0#2@v2
    push 0 -> fold v3 [0#3 tau0 1.00] lr 0.50
    push 1 -> fold v4 [1#1 tau3 1.00] lr 0.50; go 0#3@v4 freed; go 1#1@v4 tau3
the death of the slowest releases waiting workers | bounded_staleness(0)
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33
    push 1 -> fold v2 [1#1 tau1 1.00] lr 0.33
    die 2 -> go 0#1@v2 freed; go 1#1@v2 tau1 freed
a late joiner starts at the clock of the slowest | bounded_staleness(1) | 2 workers
    die 1, push 0 -> fold v1 [0#1 tau0 1.00] lr 0.50; go 0#1@v1
    push 0 -> fold v2 [0#2 tau0 1.00] lr 0.50; go 0#2@v2
    push 0 -> fold v3 [0#3 tau0 1.00] lr 0.50; go 0#3@v3
    push 0 -> fold v4 [0#4 tau0 1.00] lr 0.50; go 0#4@v4
    push 0 -> fold v5 [0#5 tau0 1.00] lr 0.50; go 0#5@v5
    join 1 -> go 1#0@v5
    push 0 -> fold v6 [0#6 tau0 1.00] lr 0.50; go 0#6@v6
    push 0 -> fold v7 [0#7 tau0 1.00] lr 0.50
    push 1 -> fold v8 [1'2#1 tau2 1.00] lr 0.50; go 0#7@v8 freed; go 1#1@v8 tau2
a worker that computes ahead is as stale as what it began from | async_sgd(ahead=1) | 2 workers
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.50; go 0#1@v1
    push 1 -> fold v2 [1#1 tau1 1.00] lr 0.50; go 1#1@v2 tau1
    push 0 adopted_at=1 -> fold v3 [0#2 tau2 1.00] lr 0.50; go 0#2@v3 tau2
    push 0 adopted_at=1 -> fold v4 [0#3 tau2 1.00] lr 0.50; go 0#3@v4 tau2
"""

# Barriers, the first m of n, a grace, a deadline

ROUNDS = """
a barrier recounts when a worker dies before its push | sync_sgd
    push 0, push 1, die 2 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1 freed
    push 0, push 1 -> fold v2 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 1.00; go 0#2@v2 freed; go 1#2@v2
a dead worker's push counts in its round | sync_sgd
    push 0, die 0, push 1, push 2 -> fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; go 1#1@v1 freed;
        go 2#1@v1
a worker rejoining within a round pushes again | sync_sgd | 2 workers
    push 0, die 0, join 0 -> go 0#0@v0
    push 0, push 1 -> fold v1 [0#1 tau0 0.33, 0'2#1 tau0 0.33, 1#1 tau0 0.33] lr 1.00; go 0#1@v1 freed; go 1#1@v1
the last worker to leave completes the round | sync_sgd | 2 workers
    push 0, die 0, die 1 -> fold v1 [0#1 tau0 1.00] lr 1.00
a late joiner is waited for | sync_sgd | 2 workers
    die 1, push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1
    join 1 -> go 1#0@v1
    push 0, push 1 -> fold v2 [0#2 tau0 0.50, 1'2#1 tau0 0.50] lr 1.00; go 0#2@v2 freed; go 1#1@v2
a non-finite contribution does not hold the round | sync_sgd
    push 0, push 1 samples=7 finite=False -> drop 1#1 not finite 7
    push 2 -> fold v1 [0#1 tau0 0.50, 2#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1 not finite freed; go 2#1@v1
a round without finite contributions makes no version | sync_sgd | 2 workers
    push 0 finite=False -> drop 0#1 not finite 32
    push 1 finite=False -> drop 1#1 not finite 32; go 0#1@v0 not finite freed; go 1#1@v0 not finite
    push 0, push 1 -> fold v1 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 1.00; go 0#2@v1 freed; go 1#2@v1
a late non-finite contribution does not count in the round | first_of(2, cancel_late=False)
    push 0, push 1 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1
    push 2 samples=7 finite=False -> drop 2#1 not finite tau1 7; go 2#1@v1 not finite tau1
    push 0, push 1 -> fold v2 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 1.00; go 0#2@v2 freed; go 1#2@v2
the first m are folded and the late cancelled | first_of(2) | 4 workers
    push 3, push 1 -> fold v1 [1#1 tau0 0.50, 3#1 tau0 0.50] lr 1.00; go 3#1@v1 freed; go 1#1@v1;
        drop 0#1 cancelled tau1; stop 0#1@v1; drop 2#1 cancelled tau1; stop 2#1@v1
a push crossing its cancellation is ignored | first_of(1) | 2 workers
    push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1; drop 1#1 cancelled tau1; stop 1#1@v1
    push 1 -> drop 1#1 duplicate
    push 1 -> fold v2 [1#2 tau0 1.00] lr 1.00; go 1#2@v2; drop 0#2 cancelled tau1; stop 0#2@v2
a late contribution is folded into the round it reaches | quorum(2)
    push 0, push 1 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1
    push 2, push 0 -> fold v2 [0#2 tau0 0.59, 2#1 tau1 0.41] lr 0.85; go 2#1@v2 tau1 freed; go 0#2@v2
a grace ends with the first tick after it | quorum(2, grace_s=1.0) | 4 workers
    at 10, push 0, push 1 -> grace until 11
    at 10.5, push 2, tick 10.9, tick 11 -> fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00;
        go 0#1@v1 freed; go 1#1@v1 freed; go 2#1@v1 freed; grace over
    tick 12
no contribution ends a grace but the last | quorum(1, grace_s=1.0)
    push 0 -> grace until 1
    at 5, push 1, push 2 -> fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; go 0#1@v1 freed;
        go 1#1@v1 freed; go 2#1@v1; grace over
    tick 6
a grace lasts until the first is due again, and a round of a part moves by that part | decoupled()
    at 10, push 0 -> grace until 20
    at 11, push 1, push 2 -> fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; go 0#1@v1 freed;
        go 1#1@v1 freed; go 2#1@v1; grace over
    at 18, push 1 -> grace until 28
    at 21, push 0, tick 27.9, tick 28 -> fold v2 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 0.67; go 1#2@v2 freed;
        go 0#2@v2 freed; grace over
a worker that is missing makes no grace longer than a worker takes | decoupled()
    at 10, push 0 -> grace until 20
    push 1, tick 20 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1 freed; grace over
    at 30, push 0 -> grace until 40
    push 1, tick 40 -> fold v2 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 1.00; go 0#2@v2 freed; go 1#2@v2 freed; grace over
a death in a grace completes the round | quorum(2, grace_s=1.0)
    push 0, push 1 -> grace until 1
    die 2 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1 freed; grace over
nobody waits in a grace for a round without finite contributions | quorum(1, grace_s=1.0) | 2 workers
    push 0 finite=False -> drop 0#1 not finite 32; go 0#1@v0 not finite
    push 0 -> grace until 1
    push 1 finite=False -> drop 1#1 not finite 32; fold v1 [0#2 tau0 1.00] lr 1.00; go 0#2@v1 freed;
        go 1#1@v1 not finite; grace over
a skipped number acknowledges the cancellation | first_of(1) | 2 workers
    push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1; drop 1#1 cancelled tau1; stop 1#1@v1
    push 0 -> fold v2 [0#2 tau0 1.00] lr 1.00; go 0#2@v2
    push 1 number=2 -> drop 1#2 stale tau1 32; go 1#2@v2 stale tau1
    push 0 -> fold v3 [0#3 tau0 1.00] lr 1.00; go 0#3@v3; drop 1#3 cancelled tau1; stop 1#3@v3
rows ahead wait for their own contribution though the one before was called off | first_of(1) | 2 workers
    push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1; drop 1#1 cancelled tau1; stop 1#1@v1
    want rows 1 number=3 ahead=True, push 0 -> fold v2 [0#2 tau0 1.00] lr 1.00; go 0#2@v2
    abandon 1 -> drop 1#2 cancelled tau1; stop 1#2@v2; serve 1#3 ahead
crossed pushes return their batches after a second cancellation | first_of(1) | 2 workers
    lease 1 total=2 -> lend 1 0/1
    push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1; drop 1#1 cancelled tau1; stop 1#1@v1
    push 0 -> fold v2 [0#2 tau0 1.00] lr 1.00; go 0#2@v2
    push 1 batches=1 -> drop 1#1 duplicate; drop 1#2 cancelled tau1; stop 1#2@v2
    push 1 number=1 batches=1 -> drop 1#1 duplicate
    lease 0 total=2 most=2 -> lend 0 0/1 0/0
an abandoned step's batches go to another worker | first_of(1) | 2 workers
    lease 1 -> lend 1 0/1
    push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1; drop 1#1 cancelled tau1; stop 1#1@v1
    abandon 1 batches=1, lease 0 -> lend 0 0/1
without cancellation late work is discarded on arrival | first_of(1, cancel_late=False) | 2 workers
    push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1
    push 1 samples=5 -> drop 1#1 stale tau1 5; go 1#1@v1 stale tau1
    push 1 -> fold v2 [1#2 tau0 1.00] lr 1.00; go 1#2@v2
fewer than m workers complete the round | first_of(3)
    push 0, push 1, die 2 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1 freed
a contribution without work is waited for no longer and weighs nothing | fedavg
    lease 2 total=3 -> lend 2 0/2
    push 2 steps=0 samples=0 batches=1 -> done 1
    push 0 samples=10, push 1 samples=30 -> fold v1 [0#1 tau0 0.25, 1#1 tau0 0.75] lr 1.00; go 2#1@v1 freed;
        go 0#1@v1 freed; go 1#1@v1
a round without any work makes no version | fedavg | 2 workers
    push 0 steps=0, push 1 steps=0 -> go 0#1@v0 freed; go 1#1@v0
a worker without work goes on where nobody waits | fedbuff(k=2) | 2 workers
    push 0 steps=0 -> go 0#1@v0
    push 0 -> hold 0#2 x 1.00; go 0#2@v0
a buffer is folded at its deadline with what has come | fedavg(first=3, deadline_s=2.0) | 4 workers
    at 10, push 0 samples=30 -> hold 0#1 x 30.00; go 0#1@v0; grace until 12
    at 11, push 1 samples=10 -> hold 1#1 x 10.00; go 1#1@v0
    tick 11.9, tick 12 -> fold v1 [0#1 tau0 0.75, 1#1 tau0 0.25] lr 1.00 held of 40.00; grace over
    push 2 samples=20 -> hold 2#1 x 14.14; go 2#1@v1 tau1; grace until 14
a full buffer does not wait for its deadline | fedavg(first=2, deadline_s=2.0) | 2 workers
    push 0 -> hold 0#1 x 32.00; go 0#1@v0; grace until 2
    push 1 -> hold 1#1 x 32.00; fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00 held of 64.00; go 1#1@v1; grace over
a worker is cancelled once until it is heard | first_of(1) | 2 workers
    push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1; drop 1#1 cancelled tau1; stop 1#1@v1
    push 0 -> fold v2 [0#2 tau0 1.00] lr 1.00; go 0#2@v2
    push 0 -> fold v3 [0#3 tau0 1.00] lr 1.00; go 0#3@v3
    push 0 -> fold v4 [0#4 tau0 1.00] lr 1.00; go 0#4@v4
a worker behind when it abandons its step is cancelled again | first_of(1) | 2 workers
    push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1; drop 1#1 cancelled tau1; stop 1#1@v1
    push 0 -> fold v2 [0#2 tau0 1.00] lr 1.00; go 0#2@v2
    push 0 -> fold v3 [0#3 tau0 1.00] lr 1.00; go 0#3@v3
    abandon 1 -> drop 1#2 cancelled tau2; stop 1#2@v3
    abandon 1, push 1 number=3 -> fold v4 [1#3 tau0 1.00] lr 1.00; go 1#3@v4; drop 0#4 cancelled tau1; stop 0#4@v4
a worker behind when its push crosses is cancelled again | first_of(1) | 2 workers
    push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1; drop 1#1 cancelled tau1; stop 1#1@v1
    push 0 -> fold v2 [0#2 tau0 1.00] lr 1.00; go 0#2@v2
    push 0 -> fold v3 [0#3 tau0 1.00] lr 1.00; go 0#3@v3
    push 1 -> drop 1#1 duplicate; drop 1#2 cancelled tau2; stop 1#2@v3
    abandon 1, push 1 number=3 -> fold v4 [1#3 tau0 1.00] lr 1.00; go 1#3@v4; drop 0#4 cancelled tau1; stop 0#4@v4
rows that were served ahead are not served again | first_of(1) | 2 workers
    push 0 -> fold v1 [0#1 tau0 1.00] lr 1.00; go 0#1@v1; drop 1#1 cancelled tau1; stop 1#1@v1
    want rows 1 number=3 ahead=True, push 0 -> fold v2 [0#2 tau0 1.00] lr 1.00; go 0#2@v2
    abandon 1 -> drop 1#2 cancelled tau1; stop 1#2@v2; serve 1#3 ahead
    push 0 -> fold v3 [0#3 tau0 1.00] lr 1.00; go 0#3@v3
    abandon 1 -> drop 1#3 cancelled tau1; stop 1#3@v3
"""

# A least number of workers, those wanted, and rounds that somebody looks at

LEAST = """
one of three waits for a second and says so once | fedavg(clients_min=2)
    die 1, die 2, push 0 -> short 1 of 2; grace until 300
    tick 10, join 1 -> go 1#0@v0
    push 1 -> fold v1 [0#1 tau0 0.50, 1'2#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1; grace over
two of three go on without the third | fedavg(clients_min=2)
    push 0, push 1, die 2 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1 freed
who waits in vain is over when a worker may be silent no longer | fedavg(clients_min=2)
    die 1, die 2, at 5, push 0 -> short 1 of 2; grace until 305
    tick 304.9, tick 305 -> short 1 of 2 over; grace over
a site that comes and dies again does not make the wait longer | fedavg(clients_min=2)
    die 1, die 2, push 0 -> short 1 of 2; grace until 300
    tick 200, join 1 -> go 1#0@v0
    tick 300 -> grace over
    die 1 -> short 1 of 2 over
that too many have finished is seen at once | fedavg(clients_min=2)
    finish 1, finish 2, push 0 -> short 1 of 2 hopeless; grace until 300
a run that ends lets go of those who wait | fedavg(clients_min=2)
    die 1, die 2, push 0 -> short 1 of 2; grace until 300
    give up -> drop 0#1 stale 32; go 0#1@v0 stale freed; grace over
    push 0 -> drop 0#2 stale 32; go 0#2@v0 stale
a round in which nothing counts is over | fedavg(clients_min=2)
    push 0 steps=0, push 1 steps=0, push 2 steps=0 -> go 0#1@v0 freed; go 1#1@v0 freed; go 2#1@v0
a version is made as soon as those wanted have come | fedavg(deadline_s=60.0, clients_wanted=2)
    push 2 -> grace until 60
    push 0 -> fold v1 [0#1 tau0 0.50, 2#1 tau0 0.50] lr 1.00; go 2#1@v1 freed; go 0#1@v1; grace over
    push 1 -> grace until 60
    push 0 -> fold v2 [0#2 tau0 0.59, 1#1 tau1 0.41] lr 1.00; go 1#1@v2 tau1 freed; go 0#2@v2; grace over
who is away is waited for until the deadline | fedavg(deadline_s=60.0, clients_min=2, clients_wanted=3)
    die 2, at 7, push 0 -> grace until 67
    at 9, push 1, tick 67 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1 freed;
        grace over
after the deadline a round goes on with the least number | fedavg(deadline_s=60.0, clients_min=2, clients_wanted=3)
    push 0 -> grace until 60
    tick 60 -> grace over
    push 1 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 1#1@v1
    push 0 -> grace until 120
too few at the deadline is said when nobody is at work | fedavg(deadline_s=60.0, clients_min=2, clients_wanted=3)
    die 1, die 2, push 0 -> short 1 of 2; grace until 300
    join 2 -> go 2#0@v0
    push 2 -> fold v1 [0#1 tau0 0.50, 2'2#1 tau0 0.50] lr 1.00; go 0#1@v1 freed; go 2#1@v1; grace over
nobody goes on before the next round begins | fedavg
    begin round, push 0, push 1, push 2 -> fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00;
        end v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33]
    die 1, join 1, die 2, begin round -> go 0#1@v1 freed; go 1#0@v1 freed
    push 0, push 1 -> fold v2 [0#2 tau0 0.50, 1'2#1 tau0 0.50] lr 1.00; end v2 [0#2 tau0 0.50, 1'2#1 tau0 0.50]
late work comes while a round is looked at | fedavg(deadline_s=60.0, clients_wanted=2)
    begin round, push 0 -> grace until 60
    push 1 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; end v1 [0#1 tau0 0.50, 1#1 tau0 0.50]; grace over
    push 2, begin round -> go 0#1@v1 freed; go 1#1@v1 freed; grace until 60
    push 0 -> fold v2 [0#2 tau0 0.59, 2#1 tau1 0.41] lr 1.00; end v2 [0#2 tau0 0.59, 2#1 tau1 0.41]; grace over
what is not finite makes no version | fedavg(clients_min=2)
    push 0, push 1 finite=False -> drop 1#1 not finite 32
    push 2 finite=False -> drop 2#1 not finite 32; short 1 of 2; grace until 300
what has no steps makes no version | fedavg(clients_min=2)
    push 0, push 1 steps=0, push 2 steps=0 -> short 1 of 2; grace until 300
a run that ends gives back the batches of those who wait | fedavg(clients_min=2)
    die 1, die 2, lease 0 most=2 -> lend 0 0/1 0/2
    push 0 batches=2 -> short 1 of 2; grace until 300
    give up -> drop 0#1 stale 32; go 0#1@v0 stale freed; grace over
    lease 0 most=3 -> lend 0 0/1 0/2 0/4
"""

# Another strategy in flight: when grants are held, and what becomes of what is pending

SWITCHED = """
a declared phase begins with its version where all wait for a fold | phases(sync_sgd, 2: async_sgd)
    push 0, push 1, push 2 -> fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; go 0#1@v1 freed;
        go 1#1@v1 freed; go 2#1@v1
    push 0, push 1, push 2 -> fold v2 [0#2 tau0 0.33, 1#2 tau0 0.33, 2#2 tau0 0.33] lr 1.00; phase 1;
        go 0#2@v2 freed; go 1#2@v2 freed; go 2#2@v2
    push 0 -> fold v3 [0#3 tau0 1.00] lr 0.33; go 0#3@v3
what is under way is folded before a declared phase begins | phases(async_sgd, 2: sync_sgd)
    push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33; go 0#1@v1
    push 0 -> fold v2 [0#2 tau0 1.00] lr 0.33
    push 1 -> fold v3 [1#1 tau2 1.00] lr 0.33
    push 2 -> fold v4 [2#1 tau3 1.00] lr 0.33; phase 1; go 0#2@v4 freed; go 1#1@v4 tau2 freed; go 2#1@v4 tau3
the time that a drain takes is told | phases(async_sgd, sync_sgd)
    at 3, switch 1, at 3.5, push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33
    push 1 -> fold v2 [1#1 tau1 1.00] lr 0.33
    push 2 -> fold v3 [2#1 tau2 1.00] lr 0.33; phase 1 after 0.5; go 0#1@v3 freed; go 1#1@v3 tau1 freed;
        go 2#1@v3 tau2
a buffer is folded as full as it is | phases(buffered(k=3, weigh=polynomial), sync_sgd) | 2 workers
    switch 1, push 0 -> hold 0#1 x 1.00
    push 1 -> hold 1#1 x 1.00; fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00 held of 2.00; phase 1;
        go 0#1@v1 freed; go 1#1@v1
a round ends with those that come | phases(quorum(2, grace_s=9.0), async_sgd)
    switch 1, push 0, push 1 -> grace until 9
    push 2 -> fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; phase 1; go 0#1@v1 freed;
        go 1#1@v1 freed; go 2#1@v1; grace over
nobody is called off and who is late has its data leased again | phases(first_of(2), async_sgd)
    switch 1, lease 2 -> lend 2 0/2
    push 0, push 1 -> fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00
    push 2 batches=1 -> drop 2#1 stale tau1 32; phase 1; go 0#1@v1 freed; go 1#1@v1 freed; go 2#1@v1 stale tau1
    lease 0 -> lend 0 0/2
the last one under way may die | phases(async_sgd, sync_sgd)
    switch 1, push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33
    push 1 -> fold v2 [1#1 tau1 1.00] lr 0.33
    die 2 -> phase 1; go 0#1@v2 freed; go 1#1@v2 tau1 freed
    push 0, push 1 -> fold v3 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 1.00; go 0#2@v3 freed; go 1#2@v3
one that waits may die and what it sent counts | phases(sync_sgd, async_sgd)
    switch 1, push 0, die 0, push 1, push 2 -> fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00;
        phase 1; go 1#1@v1 freed; go 2#1@v1
all may die | phases(sync_sgd, async_sgd)
    switch 1, push 0, die 0, die 1, die 2 -> fold v1 [0#1 tau0 1.00] lr 1.00; phase 1
    join 1 -> go 1#0@v1
    push 1 -> fold v2 [1'2#1 tau0 1.00] lr 0.33; go 1#1@v2
too few are no version when phases change | phases(decoupled(combine=median, overlap=False), diloco) | 4 workers
    lease 3 most=2 -> lend 3 0/3 0/0
    push 0, push 1, push 2 -> grace until 0
    switch 1, tick 0 -> fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; grace over
    push 3 batches=1 -> drop 3#1 stale 32; phase 1; go 0#1@v1 freed; go 1#1@v1 freed; go 2#1@v1 freed;
        go 3#1@v1 stale tau1
    lease 3 -> lend 3 0/3
weights of another phase are no part of the work | phases(local_sgd(4), decoupled(combine=median, overlap=False)) | 4 workers
    switch 1, push 0, push 1, push 2, push 3 -> fold v1 [0#1 tau0 0.25, 1#1 tau0 0.25, 2#1 tau0 0.25, 3#1 tau0 0.25] lr 1.00;
        phase 1; go 0#1@v1 freed; go 1#1@v1 freed; go 2#1@v1 freed; go 3#1@v1
    at 10, push 0, push 1, push 2 -> grace until 20
    tick 20 -> fold v2 [0#2 tau0 0.33, 1#2 tau0 0.33, 2#2 tau0 0.33] lr 1.00; go 0#2@v2 freed; go 1#2@v2 freed;
        go 2#2@v2 freed; grace over
who joins begins with the next phase | phases(async_sgd, sync_sgd) | 2 workers
    switch 1, push 0 -> fold v1 [0#1 tau0 1.00] lr 0.50
    join 2, push 1 -> fold v2 [1#1 tau1 1.00] lr 0.50; phase 1; go 0#1@v2 freed; go 1#1@v2 tau1; go 2#0@v2 freed
    push 0, push 1, push 2 -> fold v3 [0#2 tau0 0.33, 1#2 tau0 0.33, 2#1 tau0 0.33] lr 1.00; go 0#2@v3 freed;
        go 1#2@v3 freed; go 2#1@v3
who is silent while a run is drained is evicted | phases(async_sgd, sync_sgd)
    switch 1, tick 400, push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33
    push 1 -> fold v2 [1#1 tau1 1.00] lr 0.33
    tick 800 -> evict 2 after 800; phase 1 after 800; go 0#1@v2 freed; go 1#1@v2 tau1 freed
a run may be scaled while it is drained | phases(sync_sgd, async_sgd)
    switch 1, scale 4, push 0, push 1, push 2 -> fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00;
        phase 1; go 0#1@v1 freed; go 1#1@v1 freed; go 2#1@v1
    push 0 -> fold v2 [0#2 tau0 1.00] lr 0.25; go 0#2@v2
the phase that a run is in needs no drain | phases(async_sgd, sync_sgd)
    switch 0, push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33; go 0#1@v1
the phase that was asked for last counts | phases(async_sgd, sync_sgd, bounded_staleness(0))
    switch 1, switch 0, push 0 -> fold v1 [0#1 tau0 1.00] lr 0.33
    push 1 -> fold v2 [1#1 tau1 1.00] lr 0.33
    push 2 -> fold v3 [2#1 tau2 1.00] lr 0.33; go 0#1@v3 freed; go 1#1@v3 tau1 freed; go 2#1@v3 tau2
    switch 1, switch 2, push 0 -> fold v4 [0#2 tau0 1.00] lr 0.33
    push 1 -> fold v5 [1#2 tau1 1.00] lr 0.33
    push 2 -> fold v6 [2#2 tau2 1.00] lr 0.33; phase 2; go 0#2@v6 freed; go 1#2@v6 tau1 freed; go 2#2@v6 tau2
"""

# How far a contribution moves the weights

WEIGHTS = """
samples set the shares and not the scale | local_sgd(every=0.3s) | 2 workers
    push 0 samples=300, push 1 samples=100 -> fold v1 [0#1 tau0 0.75, 1#1 tau0 0.25] lr 1.00; go 0#1@v1 freed;
        go 1#1@v1
work without known samples counts by steps | local_sgd(every=1s) | 2 workers
    push 0 samples=0 steps=9, push 1 samples=0 steps=3 -> fold v1 [0#1 tau0 0.75, 1#1 tau0 0.25] lr 1.00;
        go 0#1@v1 freed; go 1#1@v1
staleness weights set shares and scale | buffered(k=2, weigh=polynomial) | 4 workers
    push 0 -> hold 0#1 x 1.00; go 0#1@v0
    push 0 -> hold 0#2 x 1.00; fold v1 [0#1 tau0 0.50, 0#2 tau0 0.50] lr 0.50 held of 2.00; go 0#2@v1
    push 0 -> hold 0#3 x 1.00; go 0#3@v1
    push 1 -> hold 1#1 x 0.71; fold v2 [0#3 tau0 0.59, 1#1 tau1 0.41] lr 0.43 held of 1.71; go 1#1@v2 tau1
the scale counts the workers asked for | async_sgd | 4 workers
    die 3, push 0 -> fold v1 [0#1 tau0 1.00] lr 0.25; go 0#1@v1
"""


ALL = [one for text in (DATA, SILENT_OR_TWICE, FREE, ROUNDS, LEAST, SWITCHED, WEIGHTS) for one in stories(text)]


@pytest.mark.parametrize("story", ALL, ids=lambda one: f"{one.name}, {one.strategy.name}")
def test_it_goes_as_told(story: Story) -> None:
    assert told(story) == story.lines


def test_batches_of_a_worker_that_never_came_are_visited_by_others() -> None:
    sequencer = Sequencer(recipes.sync_sgd(), 2, DataLeases(2, stealing=False))
    sequencer.receive(Joined(0, 1), 0.0)
    sequencer.receive(Left(1, 1, died=True), 0.0)
    (leased,) = only(Leased, sequencer.receive(LeaseWanted(0, 1, 0, 4, 10), 0.0))
    assert sorted(leased.batches) == [(0, 0), (0, 1), (0, 2), (0, 3)]
