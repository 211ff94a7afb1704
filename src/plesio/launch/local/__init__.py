"""One host: processes that a fork server starts, watched until the last of them is gone."""
