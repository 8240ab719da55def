"""NCCL's broadcast over gloo, for a machine without CUDA: in server and trainer, with this folder on PYTHONPATH.

`vf-vllm` and its client both send weights by vLLM's `PyNcclCommunicator`. Its methods are replaced as soon as its
module has been imported, in whichever process that is.
"""

import importlib.util
import sys
from datetime import timedelta
from importlib.abc import MetaPathFinder

MODULE = "vllm.distributed.device_communicators.pynccl"


def use_gloo(communicator):
    import torch.distributed as dist

    def start(self, group, device=None, library_path=None):
        # Before `group`, so that it is freed first: while gloo holds the store, that listens on a socket of `group`'s,
        # and a store whose socket is closed ends the server's process.
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
