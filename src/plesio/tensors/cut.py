"""A model in parts: whole tensors, in the model's order, by bytes as even as that allows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from plesio.errors import ConfigurationError
from plesio.tensors.arena import Kind, TensorSpec


def cut(specs: Sequence[TensorSpec], parts: int) -> tuple[TensorSpec, ...]:
    """The trained tensors in so many `parts`.

    Raises:
        ConfigurationError: there are fewer trained tensors.
    """
    trained = [place for place, spec in enumerate(specs) if spec.kind is Kind.TRAINED]
    if parts > max(1, len(trained)):
        raise ConfigurationError(
            f"fragments={parts}: a part of the model is at least one tensor, and {len(trained)} are trained; give fewer"
        )
    sizes = [specs[place].numel * specs[place].torch_dtype.itemsize for place in trained]
    part_of = dict(zip(trained, shared_out(sizes, parts), strict=True))
    return tuple(replace(spec, part=part_of.get(place, 0)) for place, spec in enumerate(specs))


def shared_out(sizes: Sequence[int], parts: int) -> list[int]:
    """The part that each thing of these sizes is in: a part is full when the next one would lead further away from an even share
    of what is left; each part has at least one.

    >>> shared_out([3, 1, 1, 1], 2), shared_out([100, 1, 1, 1], 3), shared_out([1, 1, 1, 100], 3)
    ([0, 1, 1, 1], [0, 1, 1, 2], [0, 0, 1, 2])
    """
    found: list[int] = []
    part, held, left = 0, 0, sum(sizes)
    for place, size in enumerate(sizes):
        needed = parts - part - 1
        full = held > 0 and held + size / 2 > left / (needed + 1)
        if full or len(sizes) - place <= needed:
            part, left, held = part + 1, left - held, 0
        held += size
        found.append(part)
    return found
