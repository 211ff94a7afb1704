"""What a run has to know of checkpoints and journals before it starts: its own, and those of the run it goes on from."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from plesio.errors import CheckpointError, ConfigurationError
from plesio.launch.job import Job
from plesio.launch.provenance import train_hash
from plesio.observe.summary import Incident
from plesio.protocol.journal import FILE_NAME, Folded, JournalError, read_journal
from plesio.server.checkpointer import Keeping
from plesio.server.checkpoints import FOLDER, MANIFEST, Checkpoint, Manifest, Saved, check_free, kept_in, latest

ALLOWED = (
    "give the folder of a run that kept checkpoints, that of its checkpoints, or one of them; a run keeps them with "
    "checkpoint=ps.Checkpoint(every_s=60) or --checkpoint-every-s 60"
)
NEARBY = 3
"""How many of the runs there are to resume are named."""


class Old(NamedTuple):
    """The journal of the run that is gone on with: its updates after the checkpoint; or `wrong`, why nobody knows them."""

    undone: int = 0
    wrong: str = ""


UNKNOWN = "how many later updates are undone is not known"
NO_JOURNAL = Old(wrong=f"{UNKNOWN}: there is no journal")


@dataclass(frozen=True, slots=True)
class Resumption:
    """A checkpoint that a run goes on from, and what was done after it and is lost."""

    saved: Saved
    old: Old

    @property
    def incident(self) -> Incident:
        """In words: nothing goes back silently."""
        version, undone = self.saved.manifest.version, self.old.undone
        passed = f", passing over what is newer: {'; '.join(self.saved.passed)}" if self.saved.passed else ""
        went = f"the run had got to version {version + undone}: " if undone else ""
        lost = self.old.wrong or f"{went}{undone} update{'' if undone == 1 else 's'} undone"
        return Incident(0.0, None, f"resumed at version {version} from {self.saved.path}{passed}; {lost}")


def resumption(place: str | Path, job: Job) -> Resumption:
    """The newest checkpoint at `place`, of the same run as `job`.

    Raises:
        CheckpointError: there is none, or it is of another run.
        ConfigurationError: runs under this strategy keep none.
    """
    _check_server(job)
    saved = latest(_checked(place))
    manifest = saved.manifest
    was = {"strategy": manifest.strategy, "workers": manifest.workers, "seed": manifest.seed}
    now = {"strategy": job.strategy.name, "workers": job.workers, "seed": job.seed}
    for name, value in was.items():
        if now[name] != value:
            raise CheckpointError(
                f"{saved.path} is of a run with {name}={value}, this one has {name}={now[name]}; resume with the same, "
                "or begin a new run and load weights.safetensors in the training function"
            )
    if manifest.fields != job.strategy.as_data():
        raise CheckpointError(f"{saved.path}: {manifest.strategy} had other answers then: {manifest.fields}")
    old = _old(manifest)
    if old.wrong and old is not NO_JOURNAL:
        warnings.warn(f"resumed from {saved.path}; {old.wrong}", RuntimeWarning, stacklevel=3)
    if manifest.train_hash and manifest.train_hash != train_hash(job.train):
        warnings.warn(
            f"resumed from {saved.path}; the training function, or something else in its file, has changed since: the run "
            f"goes on with the new one. plesio replay can do its journal again with neither: up to version "
            f"{manifest.version} it is the old one's, from there on the new one's",
            RuntimeWarning,
            stacklevel=3,
        )
    return Resumption(saved, old)


def _checked(place: str | Path) -> Path:
    """`place`, if it is a folder with checkpoints in it, damaged or not."""
    if not isinstance(place, (str, Path)):
        raise CheckpointError(f"resume={place!r}: not the name of a folder; {ALLOWED}")
    path = Path(place)
    if not path.exists():
        why = "there is no such folder"
    elif not path.is_dir():
        why = "it is a file, not a folder"
    elif (path / MANIFEST).is_file() or kept_in(str(path)) or kept_in(str(path / FOLDER)):
        return path
    else:
        why = "there is no checkpoint in it"
    raise CheckpointError(f"resume={str(place)!r}: {why}; {ALLOWED}{_nearby(path)}")


def _nearby(path: Path) -> str:
    """The newest runs in that folder or beside it that can be resumed, in words."""
    for folder in (path, path.parent):
        kept = sorted((one.parent for one in folder.glob(f"*/{FOLDER}") if kept_in(str(one))), key=lambda one: one.name)
        if kept:
            return f"; there is {', '.join(str(one) for one in kept[-NEARBY:])}"
    return ""


def _old(manifest: Manifest) -> Old:
    """What the old journal, if it is whole up to the checkpoint, tells of the time after it."""
    if not manifest.position or not Path(manifest.journal).is_file():
        return NO_JOURNAL
    try:
        journal = read_journal(manifest.journal)
        whole, last = journal.start == manifest.position, manifest.version
        for end, record in journal.placed():
            whole = whole or end == manifest.position
            if end > manifest.position and isinstance(record, Folded):
                last = max(last, record.version)
    except JournalError as error:
        return Old(wrong=f"{UNKNOWN}: {error}")
    if not whole:
        missing = f": it is damaged or cut off there ({journal.missing})" if journal.missing is not None else ""
        what = f"the journal {manifest.journal} does not reach the checkpoint, which is at byte {manifest.position}"
        return Old(wrong=f"{UNKNOWN}: {what}{missing}")
    return Old(last - manifest.version)


def resumable(job: Job) -> Path | None:
    """The newest place that `job` can be resumed from: its own checkpoints, or what it was resumed from itself."""
    folder = job.keeping.folder
    place = folder if kept_in(folder) else job.keeping.resume
    return _as_given(Path(place)) if place else None


def _as_given(path: Path) -> Path:
    """The run folder rather than that of its checkpoints; from here if that is shorter."""
    path = path.parent if path.name == FOLDER else path
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def check_keeping(
    job: Job, checkpoint: Checkpoint | None, runs: object, simulated: bool, begin_from: Resumption | None
) -> None:
    """Raise `ConfigurationError` where checkpoints cannot be written, or nothing resumed."""
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise ConfigurationError(f"checkpoint={checkpoint!r}: such as ps.Checkpoint(every_s=60)")
    if simulated:
        raise ConfigurationError(
            "checkpoint= and resume= are for real processes; a simulated run is done again instead"
        )
    _check_server(job)
    if checkpoint is not None and checkpoint.folder is None and runs is None:
        raise ConfigurationError(
            "checkpoint=Checkpoint() goes into the run folder; give runs=, or Checkpoint(folder=...)"
        )
    if checkpoint is not None and checkpoint.folder is not None:
        check_free(Path(checkpoint.folder), begin_from.saved if begin_from is not None else None)


def _check_server(job: Job) -> None:
    if not job.strategy.via.at_server:
        raise ConfigurationError(
            f"checkpoints, and going on from one, need a server, and under {job.strategy.name} workers fold without one; "
            "save worker 0's model in the training function"
        )


def kept(
    job: Job, folder: Path | None, checkpoint: Checkpoint | None, begin_from: Resumption | None, simulated: bool
) -> Job:
    """`job` with where its journal and its checkpoints go, and what it begins from."""
    asked = simulated or job.strategy.via.at_server  # otherwise workers fold without asking anybody
    journal = folder / FILE_NAME if folder is not None and asked else None
    into = Path(checkpoint.folder) if checkpoint is not None and checkpoint.folder is not None else None
    if checkpoint is not None and into is None and folder is not None:
        into = folder / FOLDER
    keeping = Keeping(
        folder=str(into.resolve()) if into is not None else "",
        every_s=checkpoint.every_s if checkpoint is not None else 0.0,
        keep=checkpoint.keep if checkpoint is not None else 1,
        resume=str(begin_from.saved.path.resolve()) if begin_from is not None else "",
        seed=job.seed,
        train_hash=train_hash(job.train),
        journal=str(journal.resolve()) if journal is not None else "",
    )
    incarnation = 1
    if begin_from is not None:
        incarnation = 1 + max(begin_from.saved.manifest.order.members.last_incarnation.values(), default=0)
        if journal is not None:
            _go_on_with(journal, begin_from)
    return dataclasses.replace(job, incarnation=incarnation, keeping=keeping, journal=journal)


def _go_on_with(journal: Path, begin_from: Resumption) -> None:
    """The new run's journal begins with what the old one's says up to the checkpoint, if that is whole."""
    manifest = begin_from.saved.manifest
    if not begin_from.old.wrong:
        with open(manifest.journal, "rb") as old:
            journal.write_bytes(old.read(manifest.position))
