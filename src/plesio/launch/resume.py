"""What a run has to know of checkpoints and journals before it starts: its own, and those of the run it goes on from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from plesio.config.checkpoint import Checkpoint
from plesio.errors import CheckpointError
from plesio.launch.job import Job
from plesio.observe.provenance import train_hash
from plesio.observe.summary import Incident
from plesio.protocol.journal import FILE_NAME, Decision, JournalError, read_journal
from plesio.server.checkpoints import FOLDER, MANIFEST, Manifest, Saved, check_free, kept_in, latest, newest_version
from plesio.server.keeping import Keeping
from plesio.worker.warn import warn

if TYPE_CHECKING:
    from plesio.launch.change import Change

ALLOWED = (
    "give the folder of a run that kept checkpoints, that of its checkpoints, or one of them; a run keeps them with "
    "checkpoint=ps.Checkpoint(every_s=60) or --checkpoint-every-s 60"
)
UNKNOWN = "how many later updates are undone is not known"
NO_JOURNAL = f"{UNKNOWN}: there is no journal"


@dataclass(frozen=True, slots=True)
class Resumption:
    """A checkpoint to go on from. `undone`: the updates after it, which are lost; `unknown`: why their number is not known;
    `change`: the strategy, or the number of workers, is another."""

    saved: Saved
    undone: int = 0
    unknown: str = ""
    change: Change | None = None

    @property
    def incidents(self) -> list[Incident]:
        version, undone = self.saved.manifest.version, self.undone
        passed = f", passing over what is newer: {'; '.join(self.saved.passed)}" if self.saved.passed else ""
        went = f"the run had got to version {version + undone}: " if undone else ""
        lost = self.unknown or f"{went}{undone} update{'' if undone == 1 else 's'} undone"
        what = f"resumed at version {version} from {self.saved.path}{passed}; {lost}"
        return [Incident(0.0, None, words) for words in (what, self.change and self.change.words) if words]

    @property
    def went_on(self) -> list[Incident]:
        """Of a standby that is head now."""
        what = f"the head before is lost: this one stood by, and goes on from version {self.saved.manifest.version}"
        return [Incident(0.0, None, what)]


def resumption(job: Job) -> Resumption | None:
    """The newest checkpoint at the place that `job` resumes from, of the same run; None if it begins anew."""
    config, saved = job.config, None
    if config.resume is not None:
        saved = latest(_checked(Path(config.resume)))
    if config.checkpoint is not None and config.checkpoint.folder is not None:
        check_free(Path(config.checkpoint.folder), saved)
    if saved is None:
        return None
    from plesio.launch.change import change_of  # it knows the memory of a server, and with it Numba

    manifest, change = saved.manifest, change_of(saved, config)
    undone, unknown = _undone(manifest)
    if change is not None and change.loses:
        warn(change.words)
    if unknown and unknown != NO_JOURNAL:
        warn(f"resumed from {saved.path}; {unknown}")
    if change is None and manifest.train_hash and manifest.train_hash != train_hash(job.train):
        warn(
            f"resumed from {saved.path}; the training function, or something else in its file, has changed since (resume= that "
            f"was added is such a change). The run goes on with the new file. Only plesio replay cannot do the whole run again: "
            f"up to version {manifest.version} it needs the old file, from there on the new one"
        )
    return Resumption(saved, undone, unknown, change)


def _checked(path: Path) -> Path:
    """`path`, if it is a folder with checkpoints in it, damaged or not."""
    if (path / MANIFEST).is_file() or kept_in(str(path)) or kept_in(str(path / FOLDER)):
        return path
    why = "there is no checkpoint in it" if path.exists() else "there is no such folder"
    raise CheckpointError(f"resume={str(path)!r}: {why}; {ALLOWED}")


def _undone(manifest: Manifest) -> tuple[int, str]:
    """How many updates the old journal holds after the checkpoint, or why it does not tell."""
    if not manifest.position or not Path(manifest.journal).is_file():
        return 0, NO_JOURNAL
    try:
        journal = read_journal(manifest.journal)
        whole, last = journal.start == manifest.position, manifest.version
        for end, record in journal.placed():
            whole = whole or end == manifest.position
            if end > manifest.position and isinstance(record, Decision):
                last = max([last, *(fold.version for fold in record.folds)])
    except JournalError as error:
        return 0, f"{UNKNOWN}: {error}"
    if not whole:
        missing = f": it is damaged or cut off there ({journal.missing})" if journal.missing is not None else ""
        what = f"the journal {manifest.journal} does not reach the checkpoint, which is at byte {manifest.position}"
        return 0, f"{UNKNOWN}: {what}{missing}"
    return last - manifest.version, ""


def resumable(job: Job) -> Path | None:
    """The newest place that `job` can be resumed from: its own checkpoints, or what it was resumed from itself."""
    folder = job.keeping.folder
    place = folder if kept_in(folder) else job.keeping.resume
    if not place:
        return None
    path = Path(place).parent if Path(place).name == FOLDER else Path(place)  # the run's rather than its checkpoints'
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def behind(place: Path | None, version: int, under_way: int) -> int:
    """How many versions the newest checkpoint at `place` is behind a run at `version`; 0 where it was written at the stop, and
    lacks what was `under_way`."""
    newest = newest_version(place) if place is not None else None
    return version - newest if newest is not None and version - newest > under_way else 0


def kept(job: Job, folder: Path | None, clients: Path, begin_from: Resumption | None) -> Job:
    """`job` with where its journal, its checkpoints and what `clients` keep go, and what it begins from."""
    config, into = job.config, folder / FOLDER if folder is not None else None
    asked = config.simulated or config.strategy.via.at_server  # otherwise workers fold without asking anybody
    journal = folder / FILE_NAME if folder is not None and asked else None
    checkpoint = config.checkpoint or Checkpoint()
    if checkpoint.folder is not None:
        into = Path(checkpoint.folder)
    keeping = Keeping(
        folder=str(into.resolve()) if into is not None and config.checkpoint is not None else "",
        every_s=checkpoint.every_s,
        keep=checkpoint.keep,
        resume=str(begin_from.saved.path.resolve()) if begin_from is not None else "",
        seed=job.config.seeded,
        new_data=config.data == "new",
        train_hash=train_hash(job.train),
        journal=str(journal.resolve()) if journal is not None else "",
        clients=str(clients.resolve()) if config.strategy.every.by_client else "",
    )
    incarnation = 1
    if begin_from is not None:
        manifest = begin_from.saved.manifest
        incarnation = 1 + max(manifest.order.members.last_incarnation.values(), default=0)
        if begin_from.change is not None:
            keeping = msgspec.structs.replace(keeping, begins=begin_from.change.begins)
        elif journal is not None and not begin_from.unknown:  # it begins with what the old one says until then
            with open(manifest.journal, "rb") as old:
                journal.write_bytes(old.read(manifest.position))
            if job.sources:
                job = dataclasses.replace(job, sources=read_journal(journal).head.sources or b"")
    return dataclasses.replace(job, incarnation=incarnation, keeping=keeping)
