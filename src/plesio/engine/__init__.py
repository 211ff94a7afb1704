"""Starts workers and servers, and ends them."""
