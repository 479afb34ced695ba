"""Models to start from: a folder, the hub, or a package that carries weights. Imports no torch."""
