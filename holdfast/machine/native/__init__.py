"""Reads native libraries (Mach-O, ELF, PE) of any system and simulates its dynamic loader, without loading anything.

Start with `native_report.survey_folder`. The readers extract only what the loader's rules need.
"""
