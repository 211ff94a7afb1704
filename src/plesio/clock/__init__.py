"""What orders events: the wall, virtual time, or the record of an earlier run."""
