"""Finds the model to start from: a folder, the hub, or a package that contains weights. Imports no torch.

Start with `resolve.py`. `store.py` keeps downloaded models, `shape.py` reads how large a model is.
"""
