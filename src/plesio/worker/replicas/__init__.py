"""A worker's copy of the model, in memory that the server sees."""
