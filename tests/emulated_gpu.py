"""minicl on a GPU that is not there. Run as a program: `python tests/emulated_gpu.py JSON`, a list of commands.

The device `gpu:0` is emulated: its tensors hold their numbers on the CPU, where only this file can reach them. As on
CUDA, an operation on tensors of two devices is an error, and so is a tensor of the GPU that becomes an array of numpy.
Indices may be on the CPU, and so may single numbers.
"""

import json
import sys

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("gpu")
GPU = torch.device("gpu:0")
MOVES = ("aten._to_copy.", "aten.copy_.")
INDEXED = ("aten.index.", "aten.index_put", "aten._index_put")


class OnGPU(torch.Tensor):
    """A tensor of the GPU; `numbers` is what it holds."""

    @staticmethod
    def __new__(cls, numbers):
        at = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(cls, numbers.size(), **at, dtype=numbers.dtype, device=GPU)

    def __init__(self, numbers):
        self.numbers = numbers

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return compute(operation, args, kwargs or {})


def compute(operation, args, kwargs):
    """An operation where its tensors are."""
    tensors = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    there = {id(v.numbers): v for v in tensors if isinstance(v, OnGPU)}
    here = [v for v in tensors if not isinstance(v, OnGPU) and v.ndim]
    if there and here and not str(operation).startswith(MOVES + INDEXED):
        raise RuntimeError(f"{operation}: expected all tensors to be on one device")
    asked = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    on_gpu = bool(there) if asked is None else asked.type == "gpu"
    numbers = pytree.tree_map(lambda v: v.numbers if isinstance(v, OnGPU) else v, (args, kwargs))
    result = operation(*numbers[0], **numbers[1] | ({} if asked is None else {"device": torch.device("cpu")}))
    if str(operation).startswith("aten.copy_."):
        return args[0]

    def placed(v):
        if id(v) in there:  # it was changed in place
            return there[id(v)]
        return OnGPU(v) if on_gpu and isinstance(v, torch.Tensor) else v

    return pytree.tree_map(placed, result)


class Dispatch(TorchDispatchMode):
    """What is made on the GPU, too, comes through here."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return compute(operation, args, kwargs or {})


class Calls(torch.overrides.TorchFunctionMode):
    """The calls that torch answers below the operations."""

    def __torch_function__(self, call, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if call is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == "gpu":
            del kwargs["device"]
            return call(*args, **kwargs).to(GPU)
        if args and isinstance(args[0], OnGPU):
            if call is torch.Tensor.__getitem__:
                index = args[1] if isinstance(args[1], tuple) else (args[1],)
                return call(args[0], tuple(torch.tensor(i) if isinstance(i, list | tuple) else i for i in index))
            if call is torch.Tensor.tolist:
                return args[0].numbers.tolist()
            if call is torch.Tensor.numpy:
                raise TypeError("can't convert a tensor of the GPU to numpy")
        return call(*args, **kwargs)


def no_gradients(mode=True):
    """In place of torch.inference_mode, which tensors as these do not know."""
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else torch.enable_grad()


def main(commands):
    torch.inference_mode = no_gradients
    from minicl import devices
    from minicl.cli import main as run

    find = devices.find_device
    found = {"auto_device": lambda: "gpu", "find_device": lambda name: GPU if name.startswith("gpu") else find(name)}
    for module in [module for name, module in sys.modules.items() if name.startswith("minicl")]:
        for name in found.keys() & vars(module).keys():
            setattr(module, name, found[name])
    with Dispatch(), Calls():
        return next(filter(None, map(run, commands)), 0)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
