"""Experience on its way from the processes that act to those that learn (`ps.Queue`)."""
