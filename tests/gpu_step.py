"""Training steps on a GPU that is not there. Run as a program: `python tests/gpu_step.py JSON`, one case each.

The tensors are fake (shapes without content) and on a device of their own, `gpu:0`. For each case it prints how often a
step does what; or, if a value is read back, a tensor is on the CPU or one is copied between devices, where.
"""

import json
import sys
from collections import Counter
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from minicl.config import Config
from minicl.devices import Devices
from minicl.optim import make_optimizer
from minicl.schedule import prompt_size
from minicl.training import Training

_setup_privateuseone_for_python_backend("gpu")  # a stand-in for CUDA, of which a CPU build of torch knows nothing
GPU = torch.device("gpu:0")
FREE = {"view", "_unsafe_view", "transpose", "t", "expand", "slice", "select", "detach", "unsqueeze", "squeeze",
        "alias", "split", "as_strided", "permute", "unbind", "empty", "empty_like", "empty_strided", "new_empty",
        "device", "_record_function_enter_new", "_record_function_exit"}  # fmt: skip


class Fake(FakeTensorMode):
    avoid_device_init = True  # there is nothing to initialise


class Watch(TorchDispatchMode):
    """Counts operations, and refuses those that touch another device."""

    def __init__(self):
        super().__init__()
        self.kernels = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for value in pytree.tree_leaves((args, kwargs, result)):
            if isinstance(value, torch.Tensor) and value.device != GPU:
                raise AssertionError(f"{operation} touches a tensor on {value.device}")
        name = str(operation).split(".")[1]
        if name not in FREE:
            self.kernels[name] += 1
        return result


def attention(q, k, v, attn_mask=None, is_causal=False):
    """Attention by the kernel that CUDA has for any mask in float32."""
    bias = None if attn_mask is None else attn_mask.expand(*q.shape[:2], -1, -1)
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, is_causal)[0]


FAULTS = {  # what must not happen in a step, one of each kind
    "reads back": lambda loss: loss * float(loss),
    "decides by a value": lambda loss: loss if loss > 0 else 2 * loss,
    "picks by a condition": lambda loss: loss.expand(3)[loss.expand(3) > 0].sum(),
    "makes a tensor on the CPU": lambda loss: loss * torch.ones(()),
    "copies to the GPU": lambda loss: loss * torch.ones(()).to(GPU),
    "copies to the CPU": lambda loss: loss + 0 * loss.cpu().to(GPU),
}


def step(at, fault=None, **settings):
    """The kernels of the update that follows `at` updates."""
    config = Config.make(**{**settings, "device": "cpu", "linear": "torch"})
    training = Training(config, Devices(config.machine, config.train.batch_size))
    training.step = at
    # A layout is made on the CPU and copied, once for each prompt length of a run: not in this step.
    (n, _), m = prompt_size(config, at), config.data.queries
    layouts = {size: training.config.model.layout(*size) for size in ((n, m), (n, 1), (1, m), (0, n + m))}
    with Fake(allow_non_fake_inputs=True):
        training.devices.device = GPU
        for module in training.model.modules():
            for name, p in module._parameters.items():
                module._parameters[name] = p if p is None else nn.Parameter(torch.empty(p.shape, device=GPU))
        training.optimizer = make_optimizer(training.model, config.train)
        training.loss_sum, training.bad_step = (torch.zeros((), device=GPU, dtype=d) for d in (None, torch.long))
        layouts = {size: layout.to(GPU) for size, layout in layouts.items()}
        loss = training.loss
        training.loss = lambda at: FAULTS[fault](loss(at)) if fault else loss(at)
        with (
            mock.patch("minicl.masks.layout", lambda strategy, n, m, *_: layouts[n, m]),
            mock.patch.object(F, "scaled_dot_product_attention", attention),
            mock.patch("torch.nn.utils.clip_grad._has_foreach_support", lambda *_: True),  # as for CUDA
        ):
            training.update()  # the optimiser makes its state
            training.step = at
            with Watch() as watch:
                training.update()
    return dict(watch.kernels)


def outcome(case):
    try:
        return step(**case)
    except (AssertionError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    print(json.dumps([outcome(case) for case in json.loads(sys.argv[1])]))
