"""`holdfast selftest`: does what Holdfast relies on work on this machine? Ten parts, five minutes, one file to send.

Real tools, real faults under the real supervisor, real training steps on every device. It decides nothing about a run:
`doctor` looks for what would make training fail, this looks for what would make Holdfast fail. `selftest_run` has the
list of parts.
"""
