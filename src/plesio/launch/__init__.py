"""Starts what a run needs, sees that all of it ends, and says what became of it: on this host, simulated, or from a journal."""
