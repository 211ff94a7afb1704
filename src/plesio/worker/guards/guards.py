"""The guards of one worker's model, in one object: made at prepare, asked before each step."""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_stack

from torch import nn
from torch.optim import Optimizer

from plesio.errors import ConfigurationError, ModelMismatchError
from plesio.tensors.model import self_limiting
from plesio.worker.guards.inventory import Inventory
from plesio.worker.warn import listed, warn

TRAINER = "transformers.trainer"  # the module of Hugging Face's Trainer


class Guards:
    """What a training function does to its model that would give wrong results silently: refused or warned of."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, frozen_too: bool) -> None:
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        named = list(model.named_parameters())
        self._inventory = Inventory(model)
        self._frozen = [(name, one) for name, one in named if id(one) in own and not (one.requires_grad or frozen_too)]
        self._outside = [name for name, one in named if id(one) not in own and one.requires_grad]
        self._limiting = [one for one in self_limiting(model) if any(p.requires_grad for p in one.parameters())]
        self._reads_alone: Callable[[], bool] = lambda: False
        self._go_on: Callable[[], None] = lambda: None
        self._first = True

    def prepared(
        self, replaces: bool, outside: bool, reads_alone: Callable[[], bool], go_on: Callable[[], None]
    ) -> None:
        """The worker takes part.

        Args:
            replaces: whether each version replaces what is written into the parameters.
            outside: whether trainable parameters that no optimizer holds are told: a second one may be meant for them.
            reads_alone: whether this is one of several workers, and took no batch from the prepared loader yet.
            go_on: called before the first step.
        """
        if replaces and self._limiting:
            warn(
                f"{self._limiting[0]} writes into its own weights in the forward pass: the optimizer steps at the server, which "
                "does not see that, so the result differs a little from torch's; under allreduce or local_sgd it does not"
            )
        self._reads_alone, self._go_on = reads_alone, go_on
        if outside and self._outside:
            warn(
                f"no group of an optimizer given to prepare holds {listed(self._outside)}, with requires_grad=True: in the run "
                "they stay as they are, and what another optimizer does to them reaches no other worker. Give prepare that "
                "optimizer, too, or requires_grad_(False) what is not to be trained"
            )

    def before_step(self) -> None:
        """Check what may have changed since the last step."""
        if self._first:
            self._first = False
            if self._reads_alone():
                _refuse_trainer()
            self._go_on()
            if not self._frozen:
                self.before_step = self._inventory.check  # type: ignore[method-assign]  # from now on that is all
        self._inventory.check()
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise ModelMismatchError(
                    f"{name} needed no gradient when prepare was called, and needs one now: it has no place in the exchange "
                    "and would not be trained; say worker.prepare(..., trainable='all') for what is unfrozen later"
                )


def _refuse_trainer() -> None:
    """Refuse a trainer, among the callers, that reads its data by itself: an epoch would visit each sample once a worker."""
    if any(frame.f_globals.get("__name__") == TRAINER for frame, _ in walk_stack(None)):
        raise ConfigurationError(
            "transformers.Trainer made the first step without data from prepare: each worker would train on its whole "
            "train_dataset; take plesio.integrations.transformers.Trainer(worker, ...), which shares it out"
        )
