"""What a script does to its weights after each step (a clamp, a mask, a unit norm), where it is to be done of every version.

The function is named at `prepare`. The server applies it to each new version, or a worker after each step of its own optimizer.
It is code: it goes to processes of the same host only, as cloudpickle makes it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence

import msgspec
import torch

from plesio.errors import ConfigurationError, words_of
from plesio.system.pickled import dumps
from plesio.tensors.arena import Arena, Kind, TensorSpec

Change = Callable[[Mapping[str, torch.Tensor]], object]
"""Changes parameters in place, by name."""


class AfterStep(msgspec.Struct, frozen=True):
    """The function's name, and its code; empty where that may not come along."""

    name: str
    code: bytes

    @classmethod
    def of(cls, change: Change) -> AfterStep:
        """What carries `change`; `ConfigurationError`: it is no function, or it cannot be pickled."""
        if not callable(change):
            raise ConfigurationError(
                f"prepare(after_step={change!r}): a function of a mapping from names to parameters"
            )
        try:
            return cls(getattr(change, "__qualname__", type(change).__name__), dumps(change))
        except Exception as error:
            raise ConfigurationError(
                f"prepare(after_step=...) goes to the server, and cannot be pickled: {error}"
            ) from error


def same(hellos: Sequence[AfterStep | None]) -> AfterStep | None:
    """What all workers named; `ConfigurationError` where they differ, or nobody brings the code."""
    named = {one.name if one is not None else "none" for one in hellos}
    if len(named) > 1:
        raise ConfigurationError(
            f"prepare(after_step=) differs between workers: {', '.join(sorted(named))}; name one on all"
        )
    if hellos[0] is None:
        return None
    found = next((one for one in hellos if one is not None and one.code), None)
    if found is None:
        raise ConfigurationError(
            f"after_step={hellos[0].name} is code, which only a worker on the head's own host can hand over; start one there"
        )
    return found


class Applied:
    """Applies the function to whole versions. Tables that move by rows are left out.

    Raises:
        ConfigurationError: the function raised.
    """

    def __init__(self, after: AfterStep, specs: Sequence[TensorSpec]) -> None:
        self._name = after.name
        self._change: Change = pickle.loads(after.code)
        self._places = [(spec.name, index) for index, spec in enumerate(specs) if spec.kind is Kind.TRAINED]

    def __call__(self, version: Arena) -> None:
        self.to({name: version.views[index] for name, index in self._places})

    def of(self, tensors: Sequence[torch.Tensor]) -> None:
        """To the model's tensors, in a worker."""
        self.to({name: tensors[index] for name, index in self._places})

    @torch.no_grad()
    def to(self, parameters: Mapping[str, torch.Tensor]) -> None:
        try:
            self._change(parameters)
        except Exception as error:
            raise ConfigurationError(
                f"after_step={self._name} raised {type(error).__name__}: {words_of(error)}; it is given "
                f"{', '.join(list(parameters)[:3])}, ..., each to be changed in place"
            ) from error
