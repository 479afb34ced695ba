"""The backend for Apple silicon: the engine's tasks with MLX, in a process that never loads torch.

Data order, checkpoints, events and exports are those of the torch backend, so a run can move between the two. Read
`mlx_steps` first, then a task. On Linux the same code computes on the CPU, for tests.
"""
