"""A device that is not the CPU, over CPU memory: numbers are real, mixed devices and ``numpy()`` raise as on a GPU.

Kernels, copies to the device and waits for it are counted.
"""

from collections import Counter
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "standin"
_setup_privateuseone_for_python_backend(DEVICE)
VIEWS = frozenset(
    "view t slice select detach alias as_strided permute transpose unsqueeze squeeze unbind expand split chunk empty "
    "empty_strided empty_like _unsafe_view".split()
)
"""Ops that start no kernel."""
CROSSING = frozenset({"copy_", "_to_copy"})
"""Ops that may see both devices."""


class OnDevice(Tensor):
    """A tensor of the device; ``numbers`` holds its numbers."""

    @staticmethod
    def __new__(cls, real):
        about = {"strides": real.stride(), "storage_offset": real.storage_offset(), "dtype": real.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(cls, real.shape, device=f"{DEVICE}:0", **about)
        tensor.numbers = real
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return Device.current.run(func, args, kwargs or {})

    def tolist(self):
        Device.current.waits["tolist"] += 1
        return self.numbers.tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError(f"can't convert {DEVICE}:0 device type tensor to numpy")


class Device(TorchDispatchMode):
    """Runs ops on either device, and counts those of the stand-in."""

    current = None

    def __init__(self):
        super().__init__()
        self.kernels, self.waits, self.copies = Counter(), Counter(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.run(func, args, kwargs or {})

    def run(self, func, args, kwargs):
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        ours = [x for x in tensors if isinstance(x, OnDevice)]
        others = [x for x in tensors if not isinstance(x, OnDevice) and x.dim()]
        if ours and others and name not in CROSSING:
            raise RuntimeError(f"Expected all tensors to be on the same device ({func})")
        wanted = kwargs.get("device")
        stays = bool(ours) if wanted is None else torch.device(wanted).type == DEVICE
        if wanted is not None:
            kwargs = {
                **kwargs,
                "device": torch.device("cpu"),
                **({"pin_memory": False} if "pin_memory" in kwargs else {}),
            }
        if name == "_local_scalar_dense" and ours:
            self.waits["item"] += 1
        elif ours and name in CROSSING and (not stays or (name == "copy_" and others and args[0] is others[0])):
            self.waits["to cpu"] += 1
        elif name in CROSSING and stays and others:
            self.copies += 1
        elif stays and name not in VIEWS:
            self.kernels[str(func)] += 1
        same = {id(x.numbers): x for x in ours}
        out = func(
            *tree_map_only(OnDevice, lambda x: x.numbers, args), **tree_map_only(OnDevice, lambda x: x.numbers, kwargs)
        )
        return tree_map_only(Tensor, lambda x: same.get(id(x)) if id(x) in same else OnDevice(x) if stays else x, out)


@contextmanager
def standin():
    """Enter a device and yield its counters."""
    with Device() as device:
        Device.current = device
        try:
            yield device
        finally:
            Device.current = None
