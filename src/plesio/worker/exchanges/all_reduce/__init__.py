"""All-reduce: every worker keeps a whole replica, and steps it by the mean of everybody's gradients.

torch's DistributedDataParallel does the work: it fills buckets during the backward pass and hands each over when it is
full. This package makes it survive workers that leave. One backward pass of one worker:

    first bucket full   rest (a paced or slow worker), check in with the server: GO, when all live workers are there
    each bucket full    begin the mean of it over the group
    last bucket full    begin the mean of the buffers (batch-norm statistics), too
    all came            DistributedDataParallel puts the means into .grad; backward() returns

and `optimizer.step()` steps by them. Replicas stay equal bit for bit: a collective gives all the same bits, the optimizer's
hyper-parameters are the lowest worker's where they differ, and a step that does not count leaves no trace.

| what goes wrong                                   | what becomes of the step                                          |
| ------------------------------------------------- | ----------------------------------------------------------------- |
| somebody finishes or dies before all have checked in | nothing: the others form a new group and reduce in that        |
| somebody dies while buckets are on their way      | dropped by those to whom not all came. If it did all come to      |
|                                                   | somebody, the others take over that worker's state: it counts     |
| a gradient with a NaN or an infinity              | all see the same mean, and all skip it                            |
| gradients are added outside of such a pass (by a  | `step()` reduces once more, if all did so; else all refuse to go  |
| second one through the same forward pass)         | on                                                                |
| a replica is no longer the others' (written into) | all refuse to go on, some steps later (`divergence.PARTS` at most)  |
| the run is over, and somebody's step lasts too long | dropped, so that the others can end                             |

Where the model is on a device of its own, what is reduced or taken over goes through the CPU's memory.
"""

from plesio.worker.exchanges.all_reduce.exchange import AllReduceExchange

__all__ = ["AllReduceExchange"]
