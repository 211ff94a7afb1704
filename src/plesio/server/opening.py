"""Before training: workers show their models, memory is laid out for them, and when all have mapped it they begin.

| a worker that is here | what it is waited for         | what it is told then                      |
| --------------------- | ----------------------------- | ----------------------------------------- |
| has just started      | its Hello, out of `prepare`   | with everybody's: Welcome, or Refused     |
| has said Hello        | its Ready, once it has mapped | with everybody's: the first answer        |

The lowest is welcomed first and hands over the initial weights; the others are when it is ready, and so are they. Whoever
dies before all are ready is not waited for: the others begin without it, and anew if it had not handed over.
"""

from __future__ import annotations

from collections.abc import Callable

from plesio.errors import PlesioError
from plesio.memory.blocks import Blocks
from plesio.protocol.worker import Hello, Refused
from plesio.server.lines import Line


class Opening:
    """How far the workers at `lines` are on the way to the beginning.

    `lay_out` lays out memory for those that show this; `wanted`: how many seats have to be taken, of which the others are
    for workers that come later; `takes_over`: the head is another than before, and the
    first that comes is enough.
    """

    def __init__(
        self, lay_out: Callable[[list[Hello]], Blocks], lines: list[Line | None], wanted: int, takes_over: bool = False
    ) -> None:
        self._lay_out = lay_out
        self._lines = lines
        self._wanted, self.takes_over = wanted, takes_over
        self.blocks: Blocks | None = None

    def live(self) -> list[Line]:
        return [line for line in self._lines if line is not None and not line.gone]

    @property
    def may_come_back(self) -> bool:
        """Whether there is a seat that somebody had at the head before, and nobody has yet."""
        return self.takes_over and None in self._lines[: self._wanted]

    def vacant(self) -> list[int]:
        """The seats that nobody has taken yet, and somebody is to."""
        if self.takes_over and any(self._lines):
            return []
        return [worker for worker, line in enumerate(self._lines[: self._wanted]) if line is None]

    def proceed(self, stopping: bool) -> None:
        """A worker said something, or died: whoever is next is welcomed."""
        if any(line is not None and line.ready for line in self._lines):
            for line in self.live():
                self._welcome(line, first=False)
        elif not any(line.welcomed for line in self.live()):
            self._begin(stopping)

    def _welcome(self, line: Line, first: bool) -> None:
        if self.blocks is not None and line.hello is not None and not line.welcomed:
            line.welcomed = True
            line.say(*self.blocks.welcome(line.worker, first))

    def _begin(self, stopping: bool) -> None:
        """When every live worker has shown its model: lay out memory for them, or tell all why not."""
        live = self.live()
        if not live or self.vacant() or any(line.hello is None for line in live):
            return
        if self.blocks is not None:
            self.blocks.close()
        try:
            hellos = [line.hello for line in live if line.hello is not None]
            self.blocks = self._lay_out(hellos)
        except PlesioError as error:
            for line in live:
                line.say(Refused(type(error).__name__, str(error)))
            return
        if stopping:
            self.blocks.board.stopped = 1
        self._welcome(live[0], first=True)

    @property
    def complete(self) -> bool:
        """Whether every seat is taken, and every live worker ready."""
        live = self.live()
        return self.blocks is not None and bool(live) and not self.vacant() and all(line.ready for line in live)

    def lacking(self) -> str:
        """Who is not as far as the others, and how far."""
        late = [line.worker for line in self.live() if line.hello is None or (line.welcomed and not line.ready)]
        how = {"did not come": self.vacant(), "did not get as far as prepare": late}
        told = {why: ", ".join(f"worker {one}" for one in workers) for why, workers in how.items() if workers}
        return " and ".join(f"{workers} {why}" for why, workers in told.items())
