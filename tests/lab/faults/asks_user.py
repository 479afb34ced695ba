"""Asks a question."""

input("continue? [y/N] ")
