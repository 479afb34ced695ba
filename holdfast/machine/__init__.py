"""Probes this machine, and reads the native libraries of installed packages. It asks and never guesses.

`probe.py` lists every probe and is the file to read first; `probe_runner.py` runs them side by side, each within its
time limit. A probe that fails says why and stops no other.
"""
