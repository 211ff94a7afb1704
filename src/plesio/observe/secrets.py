"""What may be shown of a command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

HIDDEN = "***"
WORDS = {"apikey", "auth", "authorization", "key", "passphrase", "pw", "pwd"}
PARTS = re.compile(r"token(?!iz|s)|secret|passw|credential|api.?key")
"""What the name of an option has in it, as a word or as a part of one, whose value is not shown."""


def without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments without the values of options named like a secret, passwords in addresses, and the code of `python -c`.

    >>> shown = without_secrets(["train.py", "--lr", ".1", "--api-key", "-abc", "API_TOKEN=xyz", "--tokenizer", "bert"])
    >>> " ".join(shown)
    'train.py --lr .1 --api-key *** API_TOKEN=*** --tokenizer bert'
    >>> " ".join(without_secrets(["--authToken", "a", "+token=5", "--clientSecret=b", "https://h/?token=c", "--num-tokens", "5"]))
    '--authToken *** +token=*** --clientSecret=*** https://h/?token=*** --num-tokens 5'
    >>> " ".join(without_secrets(["python", "-c", "key = 1", "postgres://me:p@w@host/db"]))
    'python -c *** postgres://***@host/db'
    """
    hide, before = False, ""
    for one in arguments:
        name, equals, _ = one.partition("=")
        secret = _is_secret(name)
        if (hide and not one.startswith("--")) or (before == "-c" and re.search(r"[\s=(]", one)):
            yield HIDDEN
        elif secret and equals:
            yield f"{name}={HIDDEN}"
        else:
            yield re.sub(r"://[^/\s]+@", f"://{HIDDEN}@", one)
        hide, before = secret and not equals and one.startswith("-"), one


def _is_secret(name: str) -> bool:
    words = re.split(r"[\W_]+|(?<=[a-z])(?=[A-Z])", name)
    return PARTS.search(name.lower()) is not None or not WORDS.isdisjoint(map(str.lower, words))
