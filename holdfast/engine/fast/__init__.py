"""The fast paths of training: packed attention, written-out encoder layers, worker threads, captured CUDA steps.

Each changes how fast a step is computed, never what is learned; parity tests hold each against plain PyTorch. Read
`packing` first: it lays the texts of a micro-batch in one row, and everything else builds on that.
"""
