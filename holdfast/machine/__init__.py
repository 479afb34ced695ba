"""Asks the machine and never guesses. `probe.py` runs every probe; one that fails says why and stops no other."""
