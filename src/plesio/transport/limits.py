"""Every limit of connections between hosts, each with its reason: how long, how many, how large."""

from __future__ import annotations

BEAT_S = 1.0
"""How often each side says that it is there. Five of them fit into a lease, so that one late beat is no loss."""
LEASE_S = 5.0
"""How long a side may be silent, or move no byte, until its connection counts as lost. A stopped or cut off worker holds up
a synchronous round for that long; a pause of a few seconds (swapping, a busy link) costs nobody a place."""
RETURN_S = 1.5
"""How long a worker has to come back whose connection was closed: by its end, then, or by something on the way. One that lives
notices within half a second, even while it computes, and needs a few of a slow link's round trips."""
PROOF_S = 1.0
"""How long a connection has to prove the token. A proof is one exchange of 64 bytes: a second is ten times a slow link's
round trip."""
CROWDED_S = 0.25
"""The same while `UNPROVEN_MAX` are at it: the queue behind them moves four times as fast, and whoever knows the token still
has a slow link's round trip."""
UNPROVEN_MAX = 64
"""How many connections may be about to prove themselves. More wait in the kernel's queue, where they cost this process
nothing, so that memory stays flat however many come."""
BACKLOG = 1024
"""How long that queue is. It empties in four seconds, whatever comes."""
CONNECT_S = 10.0
"""How long a worker waits for the connection and for its turn at the door: longer than that queue takes."""
HANDSHAKE_S = 5.0
"""How long TLS's handshake with the proof inside it may take, and the first message: it has passed the door, and a proxy waits
for nobody else."""
PARTING_S = 0.5
"""How long one that is refused has to read why. A connection that is closed while its bytes come would forget it."""
SEAT_S = 10.0
"""How long the launcher may take to give a seat, or to refuse one."""
LOGGED_MAX = 1000
"""How many addresses are remembered as logged. A scan from many addresses fills no memory and no log."""

MESSAGE_BYTES_MAX = 64 << 20
"""A channel's message: the largest says what a model is like, 100 bytes a tensor. Memory is taken as bytes come, not as they
are announced."""
SMALL_BYTES_MAX = 1 << 20
"""Any other message: numbers, metrics, a traceback that is cut at 20,000 characters."""
PAYLOAD_BYTES_MAX = 1 << 40
"""A payload: what a host's memory can hold. The receiver names the place and the size besides; nothing is allocated for it."""
UNACKNOWLEDGED_MAX = 10_000
"""How many messages are kept for sending them again. The other side acknowledges in every frame, once a second at least."""

PIECE_BYTES = 4 << 20
"""How much of a payload is handed to the kernel at once, and hashed: as much as a socket holds. Quarter megabytes would cost
half as much CPU again."""
PIECES_MAX = 512
"""How many pieces of memory one call may take: Linux's limit is 1,024 (IOV_MAX)."""
JOINED_BYTES_MAX = 64 << 10
"""Up to this size a payload is sent as one piece with its message: copying it costs less than doing with several."""
READ_AHEAD_BYTES = 64 << 10
"""How much is read before it is known what comes: a head, its message and a small payload, in one call. Copying those is
cheaper than another call; more would not be."""
