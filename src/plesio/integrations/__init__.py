"""Trainers of others under plesio: each its own small file, imported by nobody here."""
