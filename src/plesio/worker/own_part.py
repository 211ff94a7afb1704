"""What of a model stays with its worker, or with a client: `prepare(share=...)` says what travels, and this is the rest.

Its tensors are not in the run's layout. So no message, version or checkpoint has them, and the server does not know that they are
there. The worker's optimizer steps them where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import accumulate

import torch
from torch import nn
from torch.optim import Optimizer

from plesio.errors import ConfigurationError
from plesio.strategy import Strategy
from plesio.tables.module import named_tables
from plesio.tensors.finite import are_finite
from plesio.worker.guards.writes import buffers_of
from plesio.worker.warn import listed

Share = str | Iterable[str] | Callable[[str, torch.Tensor], bool]
"""Names of tensors or modules, patterns of names, or a function of a tensor's name and the tensor."""


@dataclass(frozen=True, eq=False)
class OwnPart:
    """These tensors by their names; of a tied one the first name. `homes`: where the buffers among them are held, and as what.
    `of_worker`: not of each of its clients."""

    tensors: Mapping[str, torch.Tensor]
    homes: Sequence[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = ()
    of_worker: bool = True

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer, share: Share, clients: bool = False) -> OwnPart | None:
        """What of the model does not match `share`; None: all of it does. `clients`: it is theirs. They have alike, as ever, what
        the optimizer does not hold.

        Raises:
            ConfigurationError: a name matches nothing, a tied tensor is shared under one of its names, or nothing that is trained
                would travel.
        """
        names = _names(model)
        shared = _matching(share, names)
        own: dict[str, torch.Tensor] = {}
        held = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for tensor, aliases in names:
            travels = [name in shared for name in aliases]
            if any(travels) and not all(travels):
                raise ConfigurationError(
                    f"prepare(share=...): {' and '.join(aliases)} are one tensor, and only {aliases[travels.index(True)]} is "
                    "shared; share it under all of its names or under none"
                )
            alike = clients and isinstance(tensor, nn.Parameter) and id(tensor) not in held
            if not any(travels) and not alike:
                own[aliases[0]] = tensor
        if own and named_tables(model):
            raise ConfigurationError(
                "prepare(share=...) and tables: the rows of tables lie at the server; leave one out"
            )
        if held <= set(map(id, own.values())):
            raise ConfigurationError(
                "prepare(share=...): nothing that the optimizer moves is shared, so there is nothing to exchange"
            )
        tensors = list(own.values())
        homes = [(module._buffers, name, tensors[at]) for module, name, at in buffers_of(model, tensors)]
        return cls(own, homes, not clients) if own else None

    @classmethod
    def named(cls, model: nn.Module, wanted: Container[str]) -> OwnPart:
        """What of the model has these names."""
        return cls({name: tensor for tensor, aliases in _names(model) for name in aliases if name in wanted})

    @property
    def identities(self) -> set[int]:
        return set(map(id, self.tensors.values()))

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [one for one in self.tensors.values() if isinstance(one, nn.Parameter)]

    def check(self, strategy: Strategy, judged: bool) -> None:
        """Raise `ConfigurationError` unless workers step by themselves. `judged`: somebody is to be given a whole model."""
        if judged and self.of_worker:
            raise ConfigurationError(
                f"evaluate= and on_round= are given one model, and prepare(share=...) leaves {listed(list(self.tensors))} to "
                "each worker; leave them out, and measure in the training function"
            )
        for one in strategy.phases:
            if not (one.send.stepped and one.via.at_server) or one.every.among_ranks:
                raise ConfigurationError(
                    f"prepare(share=...) keeps {listed(list(self.tensors))} with the worker, which has to step it, and under "
                    f"{one.name} no worker steps on its own; take one that sends what local steps moved, as fedavg does"
                )

    def _bring_back(self) -> None:
        """Copy what the forward pass put in a buffer's place (`self.mean = ...`) into the buffer itself."""
        for home, name, mine in self.homes:
            if (now := home.get(name)) is not None and now is not mine:
                mine.copy_(now.detach())
                home[name] = mine

    def is_finite(self) -> bool:
        self._bring_back()
        return are_finite([one for one in self.tensors.values() if one.is_floating_point()])

    def copied(self) -> dict[str, torch.Tensor]:
        """As it is now, on the CPU."""
        self._bring_back()
        return {name: one.detach().cpu().clone() for name, one in self.tensors.items()}

    @torch.no_grad()
    def take(self, copied: Mapping[str, torch.Tensor]) -> None:
        """Be as it was then; `ConfigurationError`: that was another part, or of another model."""
        theirs, mine = (
            {name: (tuple(one.shape), one.dtype) for name, one in tensors.items()} for tensors in (copied, self.tensors)
        )
        if theirs != mine:
            name = next(name for name in (*theirs, *mine) if theirs.get(name) != mine.get(name))
            was, now = (f"{name} {list(at[name][0])}" if name in at else f"no {name}" for at in (theirs, mine))
            raise ConfigurationError(
                f"what clients kept has {was}, and what prepare(share=...) leaves out of this model has {now}; resume with the "
                "same model and the same share="
            )
        self._bring_back()
        for name, one in self.tensors.items():
            one.copy_(copied[name])


def _names(model: nn.Module) -> list[tuple[torch.Tensor, list[str]]]:
    """Each parameter and buffer, with all of its names."""
    found: dict[int, tuple[torch.Tensor, list[str]]] = {}
    for named in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
        for name, tensor in named:
            found.setdefault(id(tensor), (tensor, []))[1].append(name.replace("_orig_mod.", ""))
    return list(found.values())


def _places(name: str) -> list[str]:
    """The modules that a tensor is in, the outermost first, and its own name.

    >>> _places("body.0.weight")
    ['body', 'body.0', 'body.0.weight']
    """
    return list(accumulate(name.split("."), "{}.{}".format))


def _matching(share: Share, names: list[tuple[torch.Tensor, list[str]]]) -> set[str]:
    every = [(name, tensor) for tensor, aliases in names for name in aliases]
    if callable(share):
        return {name for name, tensor in every if share(name, tensor)}
    wanted = [share] if isinstance(share, str) else list(share) if isinstance(share, Iterable) else [share]
    found: set[str] = set()
    for one in wanted:
        if not isinstance(one, str):
            raise ConfigurationError(
                f"prepare(share=...) has {one!r}: it takes names, patterns such as 'body.*', or a function of a name and a tensor"
            )
        matched = {name for name, _ in every if any(fnmatchcase(place, one) for place in _places(name))}
        if not matched:
            known = [name for name, _ in every]
            close = get_close_matches(one, dict.fromkeys(place for name in known for place in _places(name)), 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigurationError(
                f"prepare(share={one!r}): no parameter or buffer has that name; the model has {', '.join(known[:20])}"
                f"{f' and {len(known) - 20} more' if len(known) > 20 else ''}{hint}"
            )
        found |= matched
    return found
