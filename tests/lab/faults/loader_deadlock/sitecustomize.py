"""Put on a script's path: each data-loader worker takes a lock twice after it has served a few batches."""

import sys
import threading
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

SERVED_BATCHES = 3  # workers are made anew for each epoch, some of which have four batches for each


class _Patch(MetaPathFinder):
    """Waits for torch's fetcher to be imported, and changes what it does in a worker."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch.utils.data._utils.fetch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            fetch, lock, served = module._MapDatasetFetcher.fetch, threading.Lock(), [0]

            def fetch_a_few(self, indices):
                from torch.utils.data import get_worker_info

                served[0] += 1
                if get_worker_info() and served[0] > SERVED_BATCHES:
                    lock.acquire()
                    lock.acquire()
                return fetch(self, indices)

            module._MapDatasetFetcher.fetch = fetch_a_few

        spec.loader.exec_module = load_and_change
        return spec


sys.meta_path.insert(0, _Patch())
