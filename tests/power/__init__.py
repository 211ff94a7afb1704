"""The power of a selection of tests: how many of the faults in `power.faults` it finds."""
