"""What a step of the optimizer does: ask a server, write into shared memory, or reduce with the others."""
