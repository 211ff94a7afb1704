"""What clients keep from round to round: files in a folder that the run's workers and its server see.

    clients/begin           what every client begins with
    clients/3/17            what client 3 has in version 17, and until it has something newer
    clients/.coming/x8f2/3  what it is to have, if the contribution that says "x8f2" is folded

A worker writes what its clients are to keep before it sends the contribution. The server gives these files their places in the
fold that makes the version. So a state counts exactly if what its client moved does, whoever dies. A client begins with what it
has in the version that it trains from. Files never change; the server removes those that nobody can ask for any more.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from xxhash import xxh3_64_digest

from plesio.errors import CheckpointError
from plesio.system.disk import to_disk

BEGIN, COMING = "begin", ".coming"
FOLDER = "clients"
"""In a run folder, and in a checkpoint: there a file a client, and `begin`."""
AT_ONCE = 16
"""How many files a disk is waited for together; one after the other takes twenty times as long."""


class ClientStates:
    """The files in `folder`, which need not be there yet; bytes to whoever reads them.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     states = ClientStates(Path(folder))
    ...     coming = states.coming()
    ...     states.put(coming, 3, b"head")
    ...     states.count(coming, version=17, oldest=16)
    ...     states.get(3, 16), states.get(3, 17), states.get(3, 20)
    (None, b'head', b'head')
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begins(self) -> bytes | None:
        """What every client begins with; None: nobody has said it."""
        path = self.folder / BEGIN
        return _read(path) if path.exists() else None

    # A worker's side

    def begin(self, data: bytes) -> bytes:
        """What every client begins with: what the first worker said."""
        path = self.folder / BEGIN
        if not path.exists():
            mine = self.coming()
            self.put(mine, 0, data)
            with suppress(FileExistsError):
                os.link(self._coming(mine) / "0", path)
            self.drop(mine)
        return _read(path)

    def coming(self) -> str:
        """The name of a new folder for what goes with a contribution."""
        home = self.folder / COMING
        try:
            home.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix="", dir=home)).name
        except OSError as error:
            raise _cannot(home, error) from error

    def put(self, coming: str, client: int, data: bytes) -> None:
        path = self._coming(coming) / str(client)
        try:
            path.write_bytes(data + xxh3_64_digest(data))
        except OSError as error:
            raise _cannot(path, error) from error

    def get(self, client: int, version: int) -> bytes | None:
        """What the client has in this version; None: nothing of its own yet."""
        home = self.folder / str(client)
        known = [one for one in _versions(home) if one <= version]
        return _read(home / str(max(known))) if known else None

    # The server's side

    def count(self, coming: str, version: int, oldest: int) -> None:
        """The contribution is in this version; `oldest`: nobody asks for an older one. Done again it changes nothing."""
        place = self._coming(coming)
        try:
            for name in _numbers_in(place) if place.is_dir() else ():
                home = self.folder / name
                home.mkdir(exist_ok=True)
                (place / name).replace(home / str(version))
                for old in sorted(one for one in _versions(home) if one <= oldest)[:-1]:
                    (home / str(old)).unlink()
        except OSError as error:
            raise _cannot(place, error) from error
        self.drop(coming)

    def drop(self, coming: str) -> None:
        """The contribution does not count."""
        shutil.rmtree(self._coming(coming), ignore_errors=True)

    def newest(self) -> dict[str, Path]:
        """By their names in a checkpoint, the files that belong to the newest version."""
        if not self.folder.is_dir():
            return {}
        homes = [self.folder / name for name in _numbers_in(self.folder)]
        found = {home.name: home / str(max(known)) for home in homes if (known := _versions(home))}
        begin = self.folder / BEGIN
        return found | ({BEGIN: begin} if begin.exists() else {})

    def restore(self, checkpoint: Path, wanted: int, version: int) -> None:
        """Go on with the files of this checkpoint of `version`, which are to be so many.

        Raises:
            CheckpointError: they are not.
        """
        saved = checkpoint / FOLDER
        begin = [BEGIN] if (saved / BEGIN).exists() else []
        names = [*_numbers_in(saved), *begin] if saved.is_dir() else []
        if len(names) != wanted:
            raise CheckpointError(f"{saved} has {len(names)} files of what clients keep, and is to have {wanted}")
        for name in names:
            place = self.folder / BEGIN if name == BEGIN else self.folder / name / str(version)
            place.parent.mkdir(parents=True, exist_ok=True)
            link(saved / name, place)

    def _coming(self, name: str) -> Path:
        return self.folder / COMING / name


def keep(files: Mapping[str, Path], checkpoint: Path) -> None:
    """Bring these into a checkpoint."""
    if not files:
        return
    into = checkpoint / FOLDER
    into.mkdir()
    new = [
        into / name for name, path in files.items() if path.stat().st_nlink == 1
    ]  # others are in an older checkpoint
    for name, path in files.items():
        link(path, into / name)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(to_disk, new))
    to_disk(into)
    to_disk(checkpoint)


def link(path: Path, place: Path) -> None:
    """Have the file at `place`, too: the same, or on another disk a copy."""
    try:
        os.link(path, place)
    except FileExistsError:
        pass
    except OSError:
        shutil.copyfile(path, place)


def _versions(home: Path) -> list[int]:
    try:
        return list(map(int, _numbers_in(home)))
    except FileNotFoundError:
        return []


def _numbers_in(folder: Path) -> list[str]:
    """Its files that are called by a number. File systems and file browsers leave others: `.nfs0000...`, `.DS_Store`."""
    return [name for name in os.listdir(folder) if name.isascii() and name.isdecimal()]


def _read(path: Path) -> bytes:
    try:
        whole = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}, which a client keeps, cannot be read: {error}") from error
    data, digest = whole[:-8], whole[-8:]
    if xxh3_64_digest(data) != digest:
        raise CheckpointError(f"{path}, which a client keeps, is damaged; resume from another checkpoint")
    return data


def _cannot(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"what clients keep cannot be written to {path}: {error}; make room, or give another runs=")
