"""Checkpoints: a run as it stands between two events, in a folder that is there whole or not at all.

    checkpoints/version-00001234/
        weights.safetensors   parameters and buffers under their PyTorch names: plain torch loads them
        state.safetensors     what the server keeps beside them (momenta, corrections), as bytes
        table-0.safetensors   the rows of the model's first table (`plesio.Table`): keys, values, state, when each stepped last
        table-0.1.safetensors those of them that stepped since, and so on (`plesio.server.row_chain`)
        clients/3             what client 3 keeps (`plesio.transport.client_states`)
        worker-3.pt           what worker 3 held (its optimizer's state, what its codec left out), where workers train alone
        manifest.json         version, order and data, numbers, place in the journal, a checksum of each file

Everything is written into a hidden folder, brought to disk, and then given its name: whoever finds the name finds all of
it. The manifest's own checksum is its last line, so that a folder copied half way is told from a whole one.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from xxhash import xxh3_64_hexdigest

from plesio.core.sequencer import SequencerState
from plesio.errors import CheckpointError, ConfigurationError
from plesio.server.row_chain import Chain
from plesio.strategy import Strategy
from plesio.system.disk import to_disk
from plesio.tables.file import KeptRows
from plesio.tables.links import FILE as TABLE
from plesio.tables.links import rows_in
from plesio.transport.client_states import keep

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.safetensors", "manifest.json"
OWN = re.compile(r"worker-(0|[1-9]\d{0,8})\.pt")
FORMAT = 6
PREFIX = "version-"
FOLDER = "checkpoints"
"""Their folder in a run folder."""


class WorkerProgress(msgspec.Struct, frozen=True, gc=False):
    """How many contributions of a worker were dealt with, the local steps, samples and leased batches in them."""

    contributions: int = 0
    steps: int = 0
    samples: int = 0
    batches: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds beside tensors.

    Attributes:
        strategy, fields, workers, seed, train_hash: of the run; it is gone on with as the same one.
        version: of the global parameters.
        layout: each tensor's name, shape and dtype in words, in order.
        order: the sequencer's state.
        numbers: the folder's.
        progress: how far the worker in each seat was.
        together: how many batches are one for the order, being a step's (`RunConfig.together`).
        steps, samples: of all workers together, without those called off.
        attachments: see `plesio.attachments`.
        clients: how many files there are of what clients keep.
        journal: the journal's path, and the byte up to which it tells of what is in here; empty without one.
        files: the checksum of each file.
    """

    version: int
    strategy: str
    fields: dict[str, Any]
    workers: int
    seed: int
    train_hash: str
    layout: tuple[str, ...]
    order: SequencerState
    numbers: dict[str, Any]
    progress: tuple[WorkerProgress, ...]
    together: int = 1
    steps: int = 0
    samples: int = 0
    attachments: dict[str, Any] = {}
    clients: int = 0
    journal: str = ""
    position: int = 0
    files: dict[str, str] = {}
    format: int = FORMAT

    def with_memory(self, layout: tuple[str, ...], numbers: dict[str, Any]) -> Self:
        """With what is the memory's."""
        return msgspec.structs.replace(self, layout=layout, numbers=numbers)

    @property
    def whole(self) -> Strategy:
        """The strategy of the run, with all its phases."""
        return Strategy.from_data(self.strategy, self.fields)

    @property
    def under(self) -> Strategy:
        """The one that it was under then."""
        return self.whole.phases[self.order.phase]

    def phase_of(self, now: Strategy) -> int:
        """In which phase a run under `now` goes on from here: in the same; under another plan, in the one of this version."""
        return self.order.phase if self.whole.plan == now.plan else now.phase_at(self.version)


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint that was read and found whole; `passed` tells what is wrong with each newer one."""

    path: Path
    manifest: Manifest
    passed: tuple[str, ...] = ()

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.path / WEIGHTS)

    def state(self) -> dict[str, torch.Tensor]:
        return load_file(self.path / STATE)

    def tables(self) -> dict[str, KeptRows]:
        """The rows of each table, by its name."""
        return rows_in(self.path, self.manifest.files)

    @property
    def holders(self) -> list[int]:
        """The workers of which it has what they held."""
        return sorted(int(match[1]) for match in map(OWN.fullmatch, self.manifest.files) if match)

    def own_states(self) -> dict[int, bytes]:
        """What each worker held."""
        return {worker: (self.path / f"worker-{worker}.pt").read_bytes() for worker in self.holders}


class CheckpointStore:
    """One run's checkpoints in a folder, `keep` of them; `resumed`: the one that the run goes on from, wherever that is."""

    def __init__(self, folder: Path, keep: int, resumed: Path | None = None) -> None:
        self._folder = folder
        self._keep = keep
        self._resumed = resumed
        self._own: list[Path] | None = None  # the first of them goes first
        self._chain = Chain()

    def save(
        self,
        manifest: Manifest,
        weights: dict[str, torch.Tensor],
        state: dict[str, torch.Tensor],
        own_states: Mapping[int, bytes] = {},
        write_rows: Callable[[Path, int, int], object] | None = None,
        clients: Mapping[str, Path] = {},
    ) -> Path:
        """Write a checkpoint and delete those that are too many; its path. If it cannot, the older ones are as they were.

        `write_rows` writes the files of tables into a folder, the number of the chain, with the rows that stepped after a clock.
        `clients`: the files of what these keep, each with a checksum of its own.
        """
        path = self._folder / f"{PREFIX}{manifest.version:08d}"
        hidden = self._folder / f".{path.name}.{os.getpid()}"
        if not self._folder.parent.is_dir():  # made anew, it would hold checkpoints and nothing that says of what
            raise CheckpointError(
                f"the checkpoint {path} cannot be written: {self._folder.parent} is gone; put it back to have those to come"
            )
        try:
            own = self._begun()
            self._folder.mkdir(exist_ok=True)
            hidden.mkdir()
            for worker, data in own_states.items():
                (hidden / f"worker-{worker}.pt").write_bytes(data)
            since = self._chain.since
            chain = self._chain if since >= 0 else Chain()
            if write_rows is not None:
                write_rows(hidden, chain.link_into(hidden), since)
            checksums = _write(hidden, manifest, weights, state, chain.checksums)
            keep(clients, hidden)
            _give_name(hidden, path, None if path in own else manifest)
            rows = {name: checksum for name, checksum in checksums.items() if TABLE.fullmatch(name)}
            self._chain = Chain(path, rows, manifest.numbers.get("clock", -1))
            to_disk(self._folder)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the checkpoint {path} cannot be written: {error}; make room, or give another folder"
            ) from error
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
        self.has(manifest.version)
        return path

    def has(self, version: int) -> None:
        """A checkpoint of `version` was written, perhaps by who died: those before are too many."""
        path = self._folder / f"{PREFIX}{version:08d}"
        self._own = own = [*(one for one in self._begun() if one != path), path]
        for old in own[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        del own[: -self._keep]

    def try_to_save(self, *what: Any) -> str:
        """As `save`; why it cannot."""
        try:
            self.save(*what)
        except CheckpointError as error:
            return str(error)
        return ""

    def _begun(self) -> list[Path]:
        """Those of this run, in the order they go. The first time, it removes what killed servers left unfinished."""
        if self._own is None:
            for left in self._folder.glob(f".{PREFIX}*.*"):
                pid = left.suffix[1:]
                if pid.isdecimal() and (int(pid) == os.getpid() or not Path("/proc", pid).exists()):
                    shutil.rmtree(left, ignore_errors=True)
            there = _versions(self._folder)
            older = there.index(self._resumed) + 1 if self._resumed in there else 0
            self._own = [*there[older:], *there[:older]] if older else []  # newer ones are damaged
        return self._own


def _write(
    folder: Path,
    manifest: Manifest,
    weights: dict[str, torch.Tensor],
    state: dict[str, torch.Tensor],
    known: Mapping[str, str],
) -> dict[str, str]:
    """Write what is not there yet; the checksums of all files, of which some are `known`."""
    for name, tensors in ((WEIGHTS, weights), (STATE, state)):
        save_file({key: one.contiguous() for key, one in tensors.items()}, folder / name)
    there = sorted(one for one in folder.iterdir() if _is_ours(one.name))
    files = {one.name: known.get(one.name) or xxh3_64_hexdigest(one.read_bytes()) for one in there}
    body = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)), indent=1)
    (folder / MANIFEST).write_bytes(body + b"\n" + xxh3_64_hexdigest(body).encode() + b"\n")
    for name in files:  # safetensors makes files that only their owner may read
        shutil.copymode(folder / MANIFEST, folder / name)
    for name in (*files, MANIFEST):
        to_disk(folder / name)
    to_disk(folder)
    return files


def _give_name(hidden: Path, path: Path, manifest: Manifest | None) -> None:
    """Call a written checkpoint `path`, in place of a damaged one if there is one, or of the same `manifest`: a server that died
    had written it; None: of any."""
    if not path.exists():
        hidden.rename(path)
        return
    if manifest is not None and _is_of_another(path, manifest):
        raise CheckpointError(
            f"the checkpoint {path} is there already: another run writes into {path.parent}, too; give each a folder"
        )
    damaged = hidden.with_name(f".{path.name}.damaged.{os.getpid()}")
    path.rename(damaged)
    hidden.rename(path)
    shutil.rmtree(damaged, ignore_errors=True)


def _is_of_another(path: Path, manifest: Manifest) -> bool:
    """Whether it is whole, and another run's: one without a journal cannot be told from it."""
    there = _manifest_of(path)
    ours = bool(manifest.journal) and there is not None and there.journal == manifest.journal
    return there is not None and not (ours and there.order == manifest.order)


def _manifest_of(path: Path) -> Manifest | None:
    """None unless the checkpoint is whole."""
    try:
        return read(path).manifest
    except CheckpointError:
        return None


def latest(place: str | Path) -> Saved:
    """The newest whole checkpoint in a run folder, a folder of checkpoints, or that checkpoint itself."""
    place = Path(place)
    found = [place] if (place / MANIFEST).is_file() else [*_versions(place / FOLDER), *_versions(place)]
    wrong: list[str] = []
    for path in reversed(found):
        try:
            return msgspec.structs.replace(read(path), passed=tuple(wrong))
        except CheckpointError as error:
            wrong.append(str(error))
    why = f": {'; '.join(wrong)}" if wrong else ""
    raise CheckpointError(
        f"there is no checkpoint to resume from in {str(place)!r}{why}; a run writes them with "
        "checkpoint=ps.Checkpoint(every_s=60)"
    )


def kept_in(folder: str) -> bool:
    """Whether there is a checkpoint in that folder of checkpoints: it has its name only when it is whole."""
    return bool(folder and _versions(Path(folder)))


def newest_version(place: Path) -> int | None:
    """That of the newest checkpoint at a place where `latest` finds one, by its name; None: somebody gave it another."""
    found = [*_versions(place / FOLDER), *_versions(place)] or [place]
    number = _number(found[-1])
    return int(number) if number.isdecimal() else None


def check_free(folder: Path, resumed: Saved | None) -> None:
    """Refuse a folder that cannot be written, or that has other checkpoints than those the run resumes from."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"Checkpoint(folder={str(folder)!r}) cannot be written: {error}; give another folder"
        ) from error
    there = _versions(folder)
    if not there:
        return
    if resumed is not None:
        newest = next(filter(_manifest_of, reversed(there)), None)
        if newest is not None and newest.resolve() == resumed.path.resolve():
            return
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(there[-1].stat().st_mtime))
    whose = "of another run" if resumed is None else f"that this run, resumed from {resumed.path}, does not go on from"
    raise CheckpointError(
        f"Checkpoint(folder={str(folder)!r}): there are checkpoints in it {whose}, the newest of version "
        f"{int(_number(there[-1]))}, written {written}; give another folder, go on from "
        f"them with resume={str(folder)!r}, or delete them"
    )


def read(path: Path) -> Saved:
    """The checkpoint at `path`, or a `CheckpointError`: it is damaged, deleted meanwhile, or of another plesio."""
    try:
        body, _, digest = (path / MANIFEST).read_bytes().rstrip(b"\n").rpartition(b"\n")
        if xxh3_64_hexdigest(body).encode() != digest:
            raise CheckpointError(f"{path / MANIFEST} is damaged")
        manifest = msgspec.json.decode(body, type=Manifest)
        if not {WEIGHTS, STATE} <= manifest.files.keys() or not all(map(_is_ours, manifest.files)):
            raise CheckpointError(
                f"{path / MANIFEST} names {sorted(manifest.files)}; it must name {sorted((WEIGHTS, STATE))}, and beside them "
                "only workers' files and tables"
            )
        for name, checksum in manifest.files.items():
            if xxh3_64_hexdigest((path / name).read_bytes()) != checksum:
                raise CheckpointError(f"{path / name} is damaged")
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{error.filename} is not there; if the run that writes these checkpoints still goes on, it deletes its older "
            "ones: wait for its end, or resume from a copy"
        ) from error
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise CheckpointError(
            f"{path} has format {manifest.format}, this plesio reads {FORMAT}; use the other plesio, or begin a new run and "
            f"load {path / WEIGHTS} in the training function"
        )
    return Saved(path, manifest)


def _is_ours(name: str) -> bool:
    """Whether a manifest names such a file. File systems and file browsers leave others in any folder."""
    return name in (WEIGHTS, STATE) or bool(OWN.fullmatch(name) or TABLE.fullmatch(name))


def _versions(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first. What else begins with that word (a copy called .backup) is the user's."""
    found = folder.glob(f"{PREFIX}*") if folder.is_dir() else ()
    return sorted((path for path in found if _number(path).isdecimal()), key=lambda path: int(_number(path)))


def _number(path: Path) -> str:
    return path.name.removeprefix(PREFIX)
