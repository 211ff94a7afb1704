"""Federated rounds: clients are units of data, lent to workers as batches are.

A round is an epoch of the data's leases with `per_round` items, and an item is a client, drawn from (seed, round) alone. So each
is trained once, whoever dies; a fast worker trains more of them; a resumed run goes on in the round that it was in. What a
client draws at random depends on (seed, client, round), not on the worker.
"""
