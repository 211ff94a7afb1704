"""Virtual time. On the wall processes are ordered as they come (engine/server.py), in a replay by the journal (replaying.py)."""
