"""How long does a worker train on its own between two exchanges (`Every`), and what does it send then (`Send`)?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from plesio.errors import StrategyError
from plesio.strategy.answers.answer import COUNT, HALF_OR_NONE, NUMBER, POSITIVE, WHOLE, Answer
from plesio.strategy.answers.codec import CODEC_OR_NONE, Codec
from plesio.strategy.answers.privacy import Privacy
from plesio.strategy.answers.secure import SECURE_OR_NONE, SecureSums


@dataclass(frozen=True, slots=True)
class Steps(Answer):
    """Exchange after every `steps` optimizer steps (H). All do equal work, so all wait for the slowest.

    `proximal`: mu of a leash on local steps, mu (w - w_start) added to each gradient (Li et al. 2020, arXiv 1812.06127).

    Raises:
        StrategyError: `steps` is no whole number of at least 1, or `proximal` no number of at least 0.

    >>> Steps(16).due(steps=15, seconds=0.3), Steps(16).due(steps=16, seconds=0.3)
    (False, True)
    """

    steps: Annotated[int, COUNT]
    proximal: Annotated[float, NUMBER] = field(default=0.0, repr=False)

    @property
    def each_step(self) -> bool:
        return self.steps == 1

    def due(self, steps: int, seconds: float, version: int = 0, granted: int = 0) -> bool:
        """Whether a worker that took `steps` steps in `seconds` since its last exchange exchanges now.

        Args:
            version: which it computes from, so how far the run is.
            granted: how many steps its last grant allows; 0 if it does not say.
        """
        return steps >= self.steps

    def grants(self, pace: float, fastest: float) -> int:
        """How many steps a worker may take that makes `pace` of them a second, where the fastest makes so many; 0: as always."""
        return 0

    def __str__(self) -> str:
        return _every(self.steps) + _leash(self.proximal)


@dataclass(frozen=True, slots=True)
class Seconds(Answer):
    """Exchange every `seconds`: each worker takes as many steps as fit, so a straggler does not set the pace.

    Raises:
        StrategyError: `seconds` is no finite number above 0.

    >>> Seconds(0.3).due(steps=2, seconds=0.1), Seconds(0.3).due(steps=5, seconds=0.28)
    (False, True)
    """

    seconds: Annotated[float, POSITIVE]
    timed: ClassVar[bool] = True

    def due(self, steps: int, seconds: float, version: int = 0, granted: int = 0) -> bool:
        """Whether a worker that took `steps` steps in `seconds` since its last exchange exchanges now.

        It does when another step as long as those would no longer fit: whoever overruns keeps the others waiting.
        """
        return seconds + seconds / steps > self.seconds

    def grants(self, pace: float, fastest: float) -> int:
        return 0

    def __str__(self) -> str:
        return f"every {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class PostLocal(Answer):
    """Every step until version `after`, then every `steps` steps (Lin et al. 2020, arXiv 1808.07217).

    >>> PostLocal(8, after=100).due(1, 0.1, version=99), PostLocal(8, after=100).due(1, 0.1, version=100)
    (True, False)
    """

    steps: Annotated[int, COUNT]
    after: Annotated[int, WHOLE]

    def due(self, steps: int, seconds: float, version: int = 0, granted: int = 0) -> bool:
        return version < self.after or steps >= self.steps

    def grants(self, pace: float, fastest: float) -> int:
        return 0

    def __str__(self) -> str:
        return f"every step, later {self.steps}"


@dataclass(frozen=True, slots=True)
class Adaptive(Answer):
    """The fastest worker exchanges after `steps` steps, the others after as many as they take meanwhile: the server measures how
    fast each is, and says in each grant how many (Liu et al. 2024, arXiv 2401.09135).

    >>> Adaptive(50).grants(pace=2.0, fastest=8.0)
    12
    """

    steps: Annotated[int, COUNT]
    timed: ClassVar[bool] = True
    paced: ClassVar[bool] = True

    def due(self, steps: int, seconds: float, version: int = 0, granted: int = 0) -> bool:
        return steps >= (granted or self.steps)

    def grants(self, pace: float, fastest: float) -> int:
        return max(1, int(self.steps * min(1.0, pace / fastest)))

    def __str__(self) -> str:
        return f"{_every(self.steps)}, the slow sooner"


@dataclass(frozen=True, slots=True)
class Aligned(Answer):
    """As `Adaptive`, and all about when the others do: who took its last answer after more than one step goes on for as many
    steps longer. No worker that goes on while its answer travels is due before that has come.

    >>> Aligned(8).grants(pace=2.0, fastest=8.1)
    2
    """

    steps: Annotated[int, COUNT]
    timed: ClassVar[bool] = True
    paced: ClassVar[bool] = True
    answered: ClassVar[bool] = True

    def due(self, steps: int, seconds: float, version: int = 0, granted: int = 0) -> bool:
        return steps >= (granted or self.steps)

    def grants(self, pace: float, fastest: float) -> int:
        return max(1, round(self.steps * min(1.0, pace / fastest)))

    def __str__(self) -> str:
        return f"{_every(self.steps)}, all at once"


@dataclass(frozen=True, slots=True)
class Clients(Answer):
    """Exchange when a client ends (`plesio.Clients`), or in rounds when the worker has trained its clients of one; no step does.
    `proximal`: as of `Steps`.

    >>> Clients().due(steps=10_000, seconds=60.0)
    False
    """

    proximal: Annotated[float, NUMBER] = field(default=0.0, repr=False)
    by_client: ClassVar[bool] = True

    def due(self, steps: int, seconds: float, version: int = 0, granted: int = 0) -> bool:
        return False

    def grants(self, pace: float, fastest: float) -> int:
        return 0

    def __str__(self) -> str:
        return "by client" + _leash(self.proximal)


@dataclass(frozen=True, slots=True)
class Shown(Answer):
    """Each step is an all-reduce among the processes of one worker, and what the server is shown now and then is where they are:
    after about `seconds` of steps, by the pace that it measured, it says in each answer how many the next are. Gradients are
    reduced in `half` precision, if that is given.

    >>> Shown().grants(pace=250.0, fastest=250.0)
    250
    """

    seconds: Annotated[float, POSITIVE] = 1.0
    half: Annotated[str | None, HALF_OR_NONE] = field(default=None, repr=False)
    timed: ClassVar[bool] = True
    paced: ClassVar[bool] = True
    among_ranks: ClassVar[bool] = True

    def due(self, steps: int, seconds: float, version: int = 0, granted: int = 0) -> bool:
        return steps >= max(1, granted)

    def grants(self, pace: float, fastest: float) -> int:
        return max(1, int(self.seconds * pace))

    def __str__(self) -> str:
        return f"every step, shown every {self.seconds:g} s"


Every = Steps | Seconds | PostLocal | Adaptive | Aligned | Clients | Shown


def _leash(proximal: float) -> str:
    return f", proximal {proximal:g}" if proximal else ""


def _every(steps: int) -> str:
    return "every step" if steps == 1 else f"every {steps} steps"


def span(text: str) -> Every:
    """As people write it.

    Raises:
        StrategyError: it is neither steps nor seconds.

    >>> span("16"), span("0.3s")
    (Steps(steps=16), Seconds(seconds=0.3))
    """
    try:
        return Seconds(float(text.removesuffix("s"))) if text.endswith("s") else Steps(int(text))
    except ValueError:
        raise StrategyError(
            f"every={text}: write whole steps, such as every=16, or seconds, such as every=0.3s"
        ) from None


def every_of(recipe: str, given: int | str | Every) -> Every:
    """What `every` means in a call of that recipe: whole steps, text such as "0.3s", or the answer itself."""
    if isinstance(given, str):
        return span(given)
    if isinstance(given, float):
        raise StrategyError(f"{recipe}(every={given!r}): whole steps, such as every=16, or every=ps.Seconds({given!r})")
    return Steps(given) if isinstance(given, int) else given


def steps_of(recipe: str, given: int | str | Every) -> int:
    """The same, where it is whole steps that the recipe takes."""
    if isinstance(every := every_of(recipe, given), Steps):
        return every.steps
    raise StrategyError(f"{recipe}(every={given}): whole steps, such as every=16")


def _packed(name: str, codec: Codec | None, feedback: bool) -> str:
    return name if codec is None else f"{name}, {codec}" + ("" if feedback else ", without feedback")


@dataclass(frozen=True, slots=True)
class Gradient(Answer):
    """The gradient of the user's loss; the user's own optimizer runs at the server.

    With a `codec` it travels in fewer bytes. With `feedback` the worker keeps what the packing left out, and adds it to the next:
    p_t = pack(g_t + e_t), e_{t+1} = g_t + e_t - p_t (Seide et al. 2014, "1-Bit SGD"; Karimireddy et al. 2019, EF-SGD, arXiv
    1901.09847; of the largest numbers Lin et al. 2018, Deep Gradient Compression, arXiv 1712.01887). The next is the next that
    has a gradient for that parameter. Of one that comes too late the gradient is lost, and e_t stays.

    >>> from plesio.strategy.answers import Int8
    >>> print(Gradient(Int8()), Gradient(Int8(), feedback=False), sep="; ")
    gradient, int8; gradient, int8, without feedback
    """

    codec: Annotated[Codec | None, CODEC_OR_NONE] = None
    feedback: bool = True
    privacy: ClassVar[None] = None
    secure: ClassVar[None] = None

    @property
    def feeds_back(self) -> bool:  # type: ignore[override]
        """Whether a worker keeps what a packing left out."""
        return self.codec is not None and self.feedback

    def __str__(self) -> str:
        return _packed("gradient", self.codec, self.feedback)


@dataclass(frozen=True, slots=True)
class Parameters(Answer):
    """The parameters after the local steps; the user's optimizer, and its state, stay in the worker."""

    stepped: ClassVar[bool] = True
    codec: ClassVar[None] = None
    privacy: ClassVar[None] = None
    secure: ClassVar[None] = None
    words: ClassVar[str] = "parameters"


@dataclass(frozen=True, slots=True)
class Delta(Answer):
    """How far the local steps moved the parameters, w_start - w_local: to the server a gradient whose steps were taken elsewhere.
    The user's optimizer, and its state, stay in the worker; an `Outer` one makes a version of it.

    With a `codec` it travels in fewer bytes. With `feedback` the worker keeps what the packing left out, and adds it to the next.
    With `privacy` each client's is clipped, and the server adds noise to their sum.
    With `secure` it sees the sum over sites alone; with both each site clips its own, and adds its share of the noise.

    With `fragments` the model is in so many parts of whole tensors, and an exchange is of one part, both ways: each in its turn
    (Douillard et al. 2025, arXiv 2501.18512). The worker goes on with the other parts from where it is. Its last exchange is of
    all of them.

    With `control` the control variates by which clients correct their steps travel along (`plesio.scaffold`).
    """

    codec: Annotated[Codec | None, CODEC_OR_NONE] = None
    feedback: bool = True
    privacy: Privacy | None = field(default=None, repr=False)
    fragments: Annotated[int, COUNT] = field(default=1, repr=False)
    control: bool = field(default=False, repr=False)
    secure: Annotated[SecureSums | None, SECURE_OR_NONE] = field(default=None, repr=False)
    stepped: ClassVar[bool] = True
    differs: ClassVar[bool] = True

    @property
    def feeds_back(self) -> bool:  # type: ignore[override]
        """Whether a worker keeps what a packing left out."""
        return self.codec is not None and self.feedback

    def __str__(self) -> str:
        private = "" if self.privacy is None else f", {self.privacy}"
        if self.secure is not None:
            return f"delta, in a secure sum of {self.secure}{private}"
        if private:
            return f"delta{private}"
        if self.control:
            return "delta, control variates"
        name = "delta" if self.fragments == 1 else f"delta, one part of {self.fragments}"
        return _packed(name, self.codec, self.feedback)


Send = Gradient | Parameters | Delta
