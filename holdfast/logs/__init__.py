"""Reads what a failed run left behind and turns it into `core.evidence.Evidence`.

It recognizes structure (an exception, a stack, a progress bar, a shell's message about a signal) in logs as people have
them: cut off, compressed, with terminal codes, several ranks at once, gigabytes long. It does not judge: the hazards
search the evidence, and `diagnose` weighs what they find. Start with `log_text.py`, the path from lines to evidence;
`log_file.py` reads files of any size and any bytes.
"""
