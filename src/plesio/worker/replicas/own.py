"""What a worker holds of its own, as bytes: the state of an optimizer that steps there, and what its replica
keeps; of a lone worker, its random sources.

A checkpoint wants the state after the last contribution that was answered, and the optimizer may be some steps further. So it is
left at every exchange. From a device a copy costs more, and there a checkpoint waits for it. It is left before the next
contribution, or after the answer to the one under way; in the end; and where exchanges are too far apart for a stop to wait.

Settings (a learning rate) are not in it: they travel with contributions (`plesio.attachments.schedules`).
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.optim import Optimizer

from plesio.errors import CheckpointError
from plesio.tensors.carrying import unchecked
from plesio.tensors.local import is_split, local_of, split_like
from plesio.tensors.several import parts_of
from plesio.transport.held import CLOSE_S, Held
from plesio.worker.replicas.replica import Replica
from plesio.worker.state import WorkerState
from plesio.worker.warn import warn


class OwnState:
    """Leaves what a worker holds in `held`, and takes it up again in a resumed run. `steps`: its optimizer steps here;
    `may_wait`: it is left when it is asked for, and stays as it is until the worker has its answer."""

    def __init__(
        self, held: Held, state: WorkerState, optimizer: Optimizer, replica: Replica, steps: bool, may_wait: bool
    ) -> None:
        self._held = held
        self._worker = state.worker
        self._draws = state.draws
        self._steps = steps
        self._optimizer = optimizer
        self._replica = replica
        self._may_wait = may_wait
        self._left = True  # as it was after the last contribution
        self._loads: bool | None = None  # whether what is saved can be loaded; not known before it was tried

    def sends(self, number: int, since_s: float) -> None:
        """Contribution `number` is about to be sent, so long after the one before it."""
        self._left = not self._may_wait or since_s > CLOSE_S or self._held.asked
        if self._left:
            self.keep(number)

    def answered(self, number: int, ends: bool = False) -> None:
        """That was answered, and nothing done since; `ends`: nor will be."""
        if not self._left and (ends or self._held.asked):
            self._left = True
            self.keep(number)

    def keep(self, number: int) -> None:
        """Leave it, as it is after contribution `number`."""
        if self._loads is False:
            self._held.put(self._worker, number, b"")
            return
        what = {"kinds": self._kinds, "optimizer": self._state(), "replica": self._replica.own()}
        what |= {"draws": self._draws.kept()} if self._draws is not None else {}
        try:
            with self._held.writing(self._worker, number) as file, unchecked():
                torch.save(what, file)
            if self._loads is None and what["optimizer"]:
                _loaded(self._held.get(self._worker, number) or b"")
                self._loads = True
        except (TypeError, AttributeError, RuntimeError, OSError, pickle.PickleError) as error:
            self._loads = False
            self._held.put(self._worker, number, b"")
            warn(
                f"checkpoints cannot hold the state of {', '.join(self._kinds)}, and a resumed run begins it anew: "
                f"{str(error).splitlines()[0]}"
            )

    def take_up(self, number: int) -> bool:
        """Go on with what the server left for this worker after its contribution `number`, 0 where the run was interrupted;
        whether its optimizer does.

        Raises:
            CheckpointError: it is another optimizer's, or not what was saved.
        """
        data = self._held.get(self._worker, number)
        if not data:
            return False
        try:
            return self._go_on_with(_loaded(data))
        except (KeyError, IndexError, TypeError, RuntimeError, pickle.PickleError) as error:
            raise CheckpointError(
                f"what worker {self._worker} held is not what was saved ({type(error).__name__}: {error}); resume from another "
                "checkpoint"
            ) from error

    def _go_on_with(self, saved: Any) -> bool:
        if saved["kinds"] != self._kinds:
            raise CheckpointError(
                f"the checkpoint holds the state of {', '.join(saved['kinds'])}, and worker {self._worker} prepared "
                f"{', '.join(self._kinds)}; prepare the same, or begin a new run and load weights.safetensors in the training "
                "function"
            )
        parameters = self._replica.tensors
        for key, state in saved["optimizer"].items():
            if isinstance(key, int):
                self._optimizer.state[parameters[key]] = _beside(parameters[key], state)
            else:
                self._optimizer.state[key] = state
        if self._draws is not None and "draws" in saved:
            self._draws.take_up(saved["draws"])
        if saved["replica"] is None:  # it is of another strategy
            return False
        self._replica.take_up(saved["replica"])
        return self._steps

    @property
    def _kinds(self) -> list[str]:
        return [type(one).__name__ for one in parts_of(self._optimizer)]

    def _state(self) -> dict[Any, Any]:
        """By the number of the tensor in the model."""
        places: dict[int, Any] = {id(one): place for place, one in enumerate(self._replica.tensors)}
        own = self._optimizer.state if self._steps else {}
        kept = ((places.get(id(key), key), state) for key, state in own.items())
        return {key: _of_this_process(state) for key, state in kept if not isinstance(key, torch.Tensor)}  # not shared


def _loaded(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _of_this_process(state: Any) -> Any:
    """The state without what other processes hold of its tensors."""
    if not isinstance(state, dict):
        return state
    return {
        key: local_of(one) if isinstance(one, torch.Tensor) and is_split(one) else one for key, one in state.items()
    }


def _beside(parameter: torch.Tensor, state: Any) -> Any:
    """The state with what is shaped like its parameter on that one's device, and split as that is; the rest (counts of steps) was
    on the CPU."""
    if not isinstance(state, dict):
        return state
    shape = local_of(parameter).shape
    like = {
        key: one for key, one in state.items() if isinstance(one, torch.Tensor) and one.shape == shape and one.dim()
    }
    return {**state, **{key: split_like(parameter, one.to(parameter.device)) for key, one in like.items()}}
