"""Workers that somebody else started, here or on other hosts: how they find a run, join it and stay in it."""
