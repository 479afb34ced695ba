"""Reads native libraries (Mach-O, ELF, PE) of any system and plays that system's loader, without loading anything.

`survey.survey_folder` is the way in. The readers take only what the loader's rules need, from the files alone.
"""
