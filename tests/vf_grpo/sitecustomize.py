"""Replaces NCCL's broadcast by gloo on a machine without CUDA, in every process with this folder on PYTHONPATH.

`vf-vllm` and its client both send weights with vLLM's `PyNcclCommunicator`, whose methods are replaced as soon as its
module has been imported.
"""

import importlib.util
import sys
from datetime import timedelta
from importlib.abc import MetaPathFinder

MODULE = "vllm.distributed.device_communicators.pynccl"


def use_gloo(communicator):
    import torch.distributed as dist

    def start(self, group, device=None, library_path=None):
        # The store is created before `self.group` so that it is freed first: the underlying store listens on a socket
        # of `group`, and if that socket closes while gloo still holds the store, the server's process ends.
        store = dist.PrefixStore("gloo", group.store)
        self.gloo = dist.ProcessGroupGloo(store, group.rank, group.world_size, timedelta(seconds=120))
        self.group = group

    def broadcast(self, tensor, src, stream=None):
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self.gloo.broadcast([tensor.detach()], options).wait()

    communicator.__init__, communicator.broadcast = start, broadcast


class Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def run_and_replace(module):
            run(module)
            use_gloo(module.PyNcclCommunicator)

        spec.loader.exec_module = run_and_replace
        return spec


sys.meta_path.insert(0, Finder())
