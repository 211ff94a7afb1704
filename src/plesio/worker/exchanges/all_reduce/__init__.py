"""All-reduce: every worker keeps a whole replica, and steps it by the mean of everybody's gradients.

The workers are the ranks of one island (`plesio.worker.island`), and torch's DistributedDataParallel averages their gradients in
the backward pass. To the server they are one worker, which shows it now and then where it is: for checkpoints, evaluations and
the end. It says in its answer after how many steps they show it again, so nothing but the gradients travels in a step.

| what goes wrong                                   | what becomes of it                                                |
| ------------------------------------------------- | ----------------------------------------------------------------- |
| a worker dies                                     | all begin anew from what was shown last; the data of later steps   |
|                                                   | is leased again, so that each batch is in the model once          |
| a gradient with a NaN or an infinity              | all see the same mean, and all skip the step                      |
| gradients are added outside of such a pass (by a  | `step()` reduces once more, if all did so                         |
| second one through the same forward pass)         |                                                                   |
| a replica is no longer the others' (written into) | all refuse to go on when they are to show where they are          |
| backward() is called unequally often              | gloo's deadline ends the run, in words                            |
"""

from plesio.worker.exchanges.all_reduce.exchange import AllReduceExchange

__all__ = ["AllReduceExchange"]
