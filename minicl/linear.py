"""Linear layers on a CPU by torch's usual library or by oneDNN, which on some processors is up to twice as fast."""

import torch
from torch import Tensor, nn

from minicl.timing import take_turns

LEAD = 1.25  # oneDNN must be faster by this factor, so that noise does not choose one today and the other tomorrow


@torch.library.custom_op("minicl::product", mutates_args=())  # so that torch.compile takes it as it is
def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias by oneDNN."""
    if x.numel() == 0:  # oneDNN knows no empty products
        return nn.functional.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@product.register_fake
def _(x, weight, bias=None):
    return x.new_empty(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows, inputs = grad.flatten(0, -2), x.flatten(0, -2)
        wide = len(weight) > weight.shape[1]  # of two ways to the same sum over rows, the quicker one
        d_weight = product(inputs.T, rows.T).T if wide else product(rows.T, inputs.T)
        return product(grad, weight.T), d_weight, rows.sum(0)


class OneDNNLinear(nn.Linear):
    """nn.Linear with oneDNN's products, forward and backward."""

    def forward(self, x: Tensor) -> Tensor:
        return _Linear.apply(x, self.weight, self.bias)


def use_onednn(model: nn.Module) -> None:
    """Let the linear layers of a model use oneDNN. Their weights and names stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDNNLinear


def faster(width: int, rows: int) -> str:
    """`torch` or `onednn`: the faster one at a layer of this width, by a race of some milliseconds."""
    shapes = (rows, width), (4 * width, width), 4 * width
    x, weight, bias = (torch.ones(shape, requires_grad=True) for shape in shapes)
    grad, ways = torch.ones(rows, 4 * width), {"torch": nn.functional.linear, "onednn": _Linear.apply}
    calls = {name: lambda way=way: way(x, weight, bias).backward(grad) for name, way in ways.items()}
    seconds = {name: min(s) for name, s in take_turns(calls, repeats=7, warmup=2).items()}  # the least disturbed turn
    return "onednn" if LEAD * seconds["onednn"] < seconds["torch"] else "torch"
