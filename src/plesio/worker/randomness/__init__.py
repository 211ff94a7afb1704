"""Where a worker's random numbers come from."""
