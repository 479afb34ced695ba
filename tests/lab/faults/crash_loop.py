"""A spawned pool without a main guard: each child dies while starting, and the pool starts the next."""

import multiprocessing

import steps

steps.enter("load")
pool = multiprocessing.get_context("spawn").Pool(1)
pool.map(print, [1])
