"""Workers that are greenlets of one process, as in simulated runs and replays."""
