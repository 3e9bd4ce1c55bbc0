"""The operator under the public function, registered with torch.library in the namespace `hexad`.

It has a fake implementation, so a model that calls it traces whole under torch.compile(fullgraph=True), and
a derivative: the matrix is symmetric, so the gradient is transformed as the input was. Its arguments come
checked (see `functional`).
"""

import torch
from torch import Tensor

from hexad.kernels.hadamard_transform.backends import run


@torch.library.custom_op("hexad::hadamard_transform", mutates_args=())
def hadamard_transform(x: Tensor, block: int, backend: str) -> Tensor:
    """See `functional.hadamard_transform`."""
    y = run(backend, x, block)
    # An operator may not hand back its own argument.
    return y.clone() if y.data_ptr() == x.data_ptr() else y


@hadamard_transform.register_fake
def _(x, block, backend):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _remember(ctx, inputs, output):
    _, ctx.block, ctx.backend = inputs


def _backward(ctx, gradient):
    return hadamard_transform(gradient, ctx.block, ctx.backend), None, None


hadamard_transform.register_autograd(_backward, setup_context=_remember)


@hadamard_transform.register_vmap
def _(info, in_dims, x, block, backend):
    return hadamard_transform(x.movedim(in_dims[0], 0), block, backend), 0
