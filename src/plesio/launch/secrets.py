"""What may be shown of a command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

HIDDEN = "***"
SECRET = {
    "apikey", "auth", "authorization", "credential", "credentials", "key", "passphrase", "passwd", "password", "pw", "pwd",
    "secret", "secrets", "token",
}  # fmt: skip
"""Words in the name of an option whose value is not shown."""


def without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments without the values of options named like a secret, passwords in addresses, and the code of `python -c`.

    >>> shown = without_secrets(["train.py", "--lr", ".1", "--api-key", "-abc", "API_TOKEN=xyz", "--tokenizer", "bert"])
    >>> " ".join(shown)
    'train.py --lr .1 --api-key *** API_TOKEN=*** --tokenizer bert'
    >>> " ".join(without_secrets(["python", "-c", "key = 1", "postgres://me:pw@host/db"]))
    'python -c *** postgres://***@host/db'
    """
    hide, before = False, ""
    for one in arguments:
        name, equals, _ = one.partition("=")
        secret = not SECRET.isdisjoint(re.split(r"[-_.]+", name.lower()))
        if hide and not one.startswith("--"):
            yield HIDDEN
        elif secret and equals:
            yield f"{name}={HIDDEN}"
        elif before == "-c" and re.search(r"[\s=(]", one):
            yield HIDDEN
        else:
            yield re.sub(r"://[^/\s@]+@", f"://{HIDDEN}@", one)
        hide, before = secret and not equals and one.startswith("-"), one
