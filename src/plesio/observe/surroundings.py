"""What was around a run when it began: its command, the commit of its script, the packages and the machine.

It is for people, in run.toml and the report; nothing is decided by it.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from plesio.observe.provenance import versions

SECRET = re.compile(r"token(?!iz)|secret|pass|pw|credential|auth|key", re.IGNORECASE)
"""What the name of an option has in it whose value is not shown; it rather hides too much."""
HIDDEN = "***"
GIT_S = 2.0  # how long git may take to tell the commit


def surroundings(script: str) -> dict[str, str]:
    """In words, by name; what cannot be found out is left out. `script`: the file of the training function, if it is in one."""
    found = {
        "command": shlex.join(without_secrets(sys.orig_argv)),
        "folder": os.getcwd(),
        "script": script,
        "commit": _commit(Path(script).parent) if script else "",
        "packages": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "process": f"{os.getpid()} of {platform.node()}",
        "machine": f"{os.cpu_count()} cores ({_processor()}), {platform.system()} {platform.machine()}",
    }
    return {name: words for name, words in found.items() if words}


def without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments without the values of options named like a secret, passwords in addresses, and the code of `python -c`.

    >>> " ".join(without_secrets(["train.py", "--lr", ".1", "--api-key", "-abc", "API_TOKEN=xyz", "https://me:p@w@host/?auth=a"]))
    'train.py --lr .1 --api-key *** API_TOKEN=*** https://***@host/?auth=***'
    >>> " ".join(without_secrets(["python", "-c", "key = 1", "postgres://me:p@w@host/db"]))
    'python -c *** postgres://***@host/db'
    """
    before = ""
    for one in arguments:
        name, equals, _ = one.partition("=")
        hide = before.startswith("-") and "=" not in before and SECRET.search(before)
        if (hide and not one.startswith("--")) or (before == "-c" and re.search(r"[\s=(]", one)):
            yield HIDDEN
        else:
            shown = f"{name}={HIDDEN}" if equals and SECRET.search(name) else one
            yield re.sub(r"://[^/\s]+@", f"://{HIDDEN}@", shown)
        before = one


def _commit(folder: Path) -> str:
    """The commit of the repository that `folder` is in, with "-dirty" behind it if it holds changes; empty if there is none."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)", info.read_text() if info.exists() else "", re.MULTILINE)
    return found[1] if found else platform.processor() or "unknown"
