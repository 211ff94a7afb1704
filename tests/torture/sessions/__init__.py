"""Delivery over connections that may lose, repeat or reorder: each request is answered once."""
