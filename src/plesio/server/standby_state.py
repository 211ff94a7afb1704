"""How a run stands, for a standby: a checkpoint, and the buffers that workers read, by which stale gradients are corrected.

It is written when nothing waits to be folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from plesio.core.events import Share
from plesio.memory.machine import Machine
from plesio.server.checkpointer import Checkpointer
from plesio.server.checkpoints import FOLDER, CheckpointStore, Manifest, latest
from plesio.server.keeping import Keeping

BUFFER = "buffer-"
Read = dict[int, list[int]]
"""By worker: the buffers of the ring that it may read, the older one first."""


def write_state(folder: Path, machine: Machine, manifest: Manifest) -> Read:
    """Write into this folder how the memory stands, of which the `manifest` says the rest.

    Raises:
        CheckpointError: it cannot be written.
    """
    kept, versions = machine.kept(), machine.blocks.versions
    store = CheckpointStore(folder / FOLDER, keep=1)
    rows = machine.rows.write if machine.rows is not None else None
    store.save(manifest.with_memory(kept.layout, kept.numbers), kept.weights, kept.tensors, write_rows=rows)
    if machine.rows is not None:
        machine.rows.take_checksum()  # the next one is of what steps from now on; a run without a journal took none
    read = {worker: versions.read_by(worker) for worker in versions.read_by_workers}
    for index in {index for buffers in read.values() for index in buffers}:
        (folder / f"{BUFFER}{index}").write_bytes(versions.buffers[index].bytes)
    return read


def take_state(folder: Path, machine: Machine, workers: int, read: Read, settings: Mapping[int, bytes]) -> Manifest:
    """Go on from what is there, in a run of so many workers; what it says beside the memory. `settings`: of each one's optimizer.

    Raises:
        CheckpointError: it is damaged, or of another model.
    """
    saved, blocks = latest(folder), machine.blocks
    manifest, versions = saved.manifest, blocks.versions
    resumed = Checkpointer(Keeping(resume=str(saved.path)), blocks.strategy, blocks.workers, blocks.seats)
    resumed.restore(machine, lambda order: None)
    machine.do(Share(workers))
    for worker, said in settings.items():
        machine.folder.set_groups(worker, msgspec.msgpack.decode(said))
    known = versions.read_by_workers  # by the checkpoint
    others = {worker: buffers for worker, buffers in read.items() if worker not in known}
    free = (
        index for index in range(len(versions.buffers)) if index != versions.current and not versions.is_pinned(index)
    )
    places = dict(zip(sorted({index for buffers in others.values() for index in buffers}), free, strict=False))
    for index, place in places.items():
        versions.buffers[place].bytes[:] = (folder / f"{BUFFER}{index}").read_bytes()
    for worker, buffers in others.items():
        machine.folder.reads(worker, [places[index] for index in buffers])
    return manifest
