"""Reads a user's model: its tensors in order, each once, and its structure without them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Container
from typing import Any, NamedTuple

import cloudpickle
import msgspec
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from torch.optim import Optimizer

from plesio.errors import ConfigurationError, ModelMismatchError
from plesio.system.memory import TablePlace
from plesio.system.pickled import dumps, send_settings_by_name
from plesio.tensors.arena import CPU, Kind, Layout, TensorSpec, order_in_memory


class Described(msgspec.Struct, frozen=True):
    """A model's tensors; `names` maps each key of its state_dict, in order, to one of them: tied weights share one. `tables`:
    by such keys those that no strategy exchanges."""

    specs: tuple[TensorSpec, ...]
    names: tuple[tuple[str, int], ...]
    tables: dict[str, TablePlace] = {}


OF_NO_MODULE = (
    "A tensor of no module, such as a temperature: make it t = torch.nn.Parameter(...), and give prepare "
    "torch.nn.ParameterList([t]) and its optimizer, too"
)
"""What is said of an optimizer over a tensor that is in no module."""


class Models(nn.ModuleList):
    """Several modules that are trained as one model."""


def describe(
    model: nn.Module,
    optimizer: Optimizer | None,
    tables: Container[int] = (),
    frozen_too: bool = False,
    unheld_too: bool = False,
    own: Container[int] = (),
) -> tuple[Described, list[torch.Tensor]]:
    """The description of `model` under `optimizer`, and its tensors in the same order; `tables`: the identities of those that
    move by rows; `frozen_too`: what the optimizer holds counts as trained, though it needs no gradient yet; `unheld_too`: so
    does what needs one, though no optimizer holds it yet; `own`: the identities of those that are left out."""
    param_groups = optimizer.param_groups if optimizer is not None else ()
    groups = {id(one): position for position, group in enumerate(param_groups) for one in group["params"]}
    written = _written_in_forward(model)
    specs: list[TensorSpec] = []
    tensors: list[torch.Tensor] = []
    for name, parameter in model.named_parameters():
        group = groups.pop(id(parameter), -1)
        if id(parameter) in own:
            continue
        kind = Kind.TRAINED if (parameter.requires_grad or frozen_too) and (group >= 0 or unheld_too) else Kind.FROZEN
        if id(parameter) in written:
            kind = Kind.BUFFER
        if kind is Kind.TRAINED and id(parameter) in tables:
            kind = Kind.ROWS
        asleep = kind is Kind.TRAINED and frozen_too and not parameter.requires_grad
        specs.append(_spec(_plain(name), parameter, kind, group if kind.moves else -1, asleep))
        tensors.append(parameter)
    for name, buffer in model.named_buffers():
        if id(buffer) in own:
            continue
        specs.append(_spec(_plain(name), buffer, Kind.BUFFER, -1))
        tensors.append(buffer)
    if not any(spec.kind is not Kind.BUFFER for spec in specs):
        raise ConfigurationError(f"{type(model).__name__} has no parameters: there is nothing to train")
    if groups:
        raise ConfigurationError(
            f"{len(groups)} parameters of the optimizer are not in the model given to prepare; "
            f"build the optimizer from that model's parameters(), or put all modules that it trains into one. {OF_NO_MODULE}"
        )
    if optimizer is not None and not any(spec.kind.moves for spec in specs):
        raise ConfigurationError("no parameter of the optimizer requires a gradient: there is nothing to train")
    places = {key: module.place for key, module in tables_in(model).items()}
    return Described(tuple(specs), _state_names(model, tensors), places), tensors


def with_control(described: Described, tensors: list[torch.Tensor]) -> tuple[Described, list[torch.Tensor]]:
    """And beside each trained tensor a control variate, which begins with zeros and is in no state_dict."""
    both = list(zip(described.specs, tensors, strict=True))
    if means := [spec.name for spec, one in both if spec.kind is Kind.BUFFER and one.is_floating_point()]:
        raise ConfigurationError(
            f"ps.scaffold adds up what clients moved, and of buffers ({', '.join(means[:3])}) there is only a mean; use layers "
            "without running statistics (GroupNorm in place of BatchNorm)"
        )
    trained = [(spec, one) for spec, one in both if spec.kind is Kind.TRAINED]
    own = {"group": 1 + max(spec.group for spec, _ in trained), "beside": True}
    variates = [torch.zeros_like(one, dtype=torch.promote_types(one.dtype, torch.float32)) for _, one in trained]
    named = [
        replace(spec, name=f"{spec.name} (control variate)", dtype=str(one.dtype).removeprefix("torch."), **own)
        for (spec, _), one in zip(trained, variates, strict=True)
    ]
    return replace(described, specs=(*described.specs, *named)), [*tensors, *variates]


def tables_in(model: nn.Module) -> dict[str, Any]:
    """The modules with a table in shared memory, by each key that it has in the state_dict."""
    named = model.named_modules(remove_duplicate=False)
    tables = [(name, one) for name, one in named if isinstance(getattr(one, "place", None), TablePlace)]
    return {_plain(f"{name}._extra_state").lstrip("."): one for name, one in tables}


def device_of(model: nn.Module) -> torch.device:
    """The one device of a model's parameters and buffers; `ConfigurationError` for several, and for "meta"."""
    devices = {tensor.device: name for name, tensor in (*model.named_buffers(), *model.named_parameters())}
    if len(devices) > 1:
        places = ", ".join(f"{name} is on {device}" for device, name in devices.items())
        raise ConfigurationError(
            f"the model is spread over {len(devices)} devices ({places}); move it to one before prepare"
        )
    device = next(iter(devices), CPU)
    if device.type == "meta":
        raise ConfigurationError(
            "the model has no memory (device meta); use .to_empty(device=) and give it weights first"
        )
    return device


def self_limiting(model: nn.Module) -> list[nn.Module]:
    """The modules whose forward pass writes into their own parameters, as `nn.Embedding(max_norm=...)` does.

    >>> self_limiting(nn.Sequential(nn.Linear(2, 2), nn.Embedding(3, 2, max_norm=1.0)))
    [Embedding(3, 2, max_norm=1.0)]
    """
    return [module for module in model.modules() if getattr(module, "max_norm", None) is not None]


def _written_in_forward(model: nn.Module) -> set[int]:
    """The identities of parameters that are buffers in all but name: Keras's layers on torch know no buffers. What their forward
    pass writes (moving statistics, a Dropout's seed) they create as not trainable; what is frozen later is not among it. Weights
    quantized to bytes are, though nobody writes them."""
    flat: list[Callable[[], list[Any]]] = [getattr(one, "_flatten_layers", list) for one in model.modules()]
    layers = [layer for layers_of in flat for layer in layers_of()]
    held = [one.value for layer in layers for one in layer._non_trainable_variables]
    seeds = [one.state.value for layer in layers for one in layer._seed_generators]
    return {id(one) for one in (*held, *seeds) if one.itemsize > 1 and not one.requires_grad}


def _spec(name: str, tensor: torch.Tensor, kind: Kind, group: int, asleep: bool = False) -> TensorSpec:
    if is_lazy(tensor):
        raise ConfigurationError(
            f"{name} has no shape yet (a lazy module's); run one batch through the model before prepare"
        )
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_quantized:
        remedy = "; keep a complex one as torch.view_as_real shows it, or a constant as a plain attribute"
        raise ConfigurationError(
            f"{name}: {tensor.dtype}, {tensor.layout} cannot be shared; dense real tensors can"
            f"{remedy if tensor.is_complex() else ''}"
        )
    order = order_in_memory(tensor) if kind is not Kind.ROWS else ()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(name, tuple(tensor.shape), dtype, kind, group, asleep, order=order)


def _state_names(model: nn.Module, tensors: list[torch.Tensor]) -> tuple[tuple[str, int], ...]:
    """The state_dict's keys with the index of each tensor, without keys of other values."""
    where = {id(tensor): index for index, tensor in enumerate(tensors)}
    live = model.state_dict(keep_vars=True)
    return tuple((_plain(key), where[id(value)]) for key, value in live.items() if id(value) in where)


def _plain(name: str) -> str:
    """The name that a tensor had before its module was compiled.

    >>> _plain("encoder._orig_mod.weight")
    'encoder.weight'
    """
    return name.replace("_orig_mod.", "")


def check_same(wanted: Layout, got: Layout, worker: int, reference: int) -> None:
    """Raise `ModelMismatchError` if worker `worker` does not hold the model that worker `reference` holds."""
    difference = wanted.difference(got)
    if difference is not None:
        raise ModelMismatchError(
            f"worker {worker} does not hold the same model as worker {reference}: {difference}; "
            "build the model the same way on every worker"
        )


class _StructurePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a module with a number in place of each tensor, and whether it is a parameter."""

    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._where = {id(tensor): index for index, tensor in enumerate(tensors)}
        self.met: set[int] = set()

    def persistent_id(self, value: Any) -> tuple[int, bool] | None:
        index = self._where.get(id(value))
        self.met.add(id(value))
        return None if index is None else (index, isinstance(value, nn.Parameter))

    def reducer_override(self, value: Any) -> Any:
        """Parametrized modules forbid pickling, for torch makes their class anew in each process: here the class goes along."""
        if isinstance(value, nn.Module) and is_parametrized(value):
            return object.__new__, (type(value),), value.__dict__
        return super().reducer_override(value)


def dump_structure(model: nn.Module, tensors: list[torch.Tensor]) -> bytes:
    """`model` without its tensors, for another process of this host."""
    send_settings_by_name()
    file = io.BytesIO()
    pickler = _StructurePickler(file, tensors)
    try:
        pickler.dump(model)
    except Exception as error:
        raise ConfigurationError(
            f"evaluate gets a copy of the model, and {type(model).__name__} cannot be pickled: {error}; "
            "keep open files, locks and the like out of the module"
        ) from error
    if tensors and pickler.met.isdisjoint(map(id, tensors)):
        raise ConfigurationError(
            f"evaluate gets a copy of the model over the run's weights, and {type(model).__name__} pickles copies of its own "
            "weights, as Keras's models do: evaluate would see those of the beginning. Say what builds one: "
            "ps.run(..., model=build)"
        )
    return file.getvalue()


class BuiltModel(NamedTuple):
    """In place of a structure: what builds the model anew, and which tensor each key of its state_dict is."""

    build: Callable[[], nn.Module]
    names: tuple[tuple[str, int], ...]

    def over(self, tensors: list[torch.Tensor]) -> nn.Module:
        """The model, with these tensors."""
        model = self.build()
        built = model.state_dict(keep_vars=True)
        try:
            model.load_state_dict({name: tensors[index] for name, index in self.names}, assign=True)
        except RuntimeError as error:
            raise ConfigurationError(
                f"ps.run(model=...) builds a {type(model).__name__} that is not the model given to prepare: {error}"
            ) from error
        for name, index in self.names:  # Keras's layers hold their parameters beside the module, too
            if not built[name].is_meta:
                built[name].data = tensors[index].data
        return model


def dump_plain(build: Callable[[], nn.Module], described: Described) -> bytes:
    """As `dump_structure`, of a model that is split among processes and cannot be copied."""
    try:
        return dumps(BuiltModel(build, described.names))
    except Exception as error:
        raise ConfigurationError(
            f"ps.run(model=...) goes to where evaluate is called, and cannot be pickled: {error}"
        ) from error


def load_structure(data: bytes, specs: tuple[TensorSpec, ...], views: tuple[torch.Tensor, ...]) -> nn.Module:
    """The module of `dump_structure`, with the tensors in `views`."""
    parameters = [nn.Parameter(view, requires_grad=False) for view in views]
    both = zip(specs, views, parameters, strict=True)
    tensors = [view if spec.kind is Kind.BUFFER else parameter for spec, view, parameter in both]
    unpickler = pickle.Unpickler(io.BytesIO(data))
    unpickler.persistent_load = lambda of: (parameters if of[1] else tensors)[of[0]]  # type: ignore[method-assign]
    loaded = unpickler.load()
    model = loaded.over(tensors) if isinstance(loaded, BuiltModel) else loaded
    assert isinstance(model, nn.Module)
    return model
