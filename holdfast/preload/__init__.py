"""What `holdfast run` puts on an unmodified script's path: this folder itself goes first on PYTHONPATH.

Python imports `sitecustomize` from it in every interpreter of the command. It uses the standard library only and
nothing of Holdfast, because the script's interpreter may be another one.
"""
