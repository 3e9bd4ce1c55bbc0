"""The operators under the public function, registered with torch.library in the namespace `hexad`.

They have fake implementations, so a model that calls them traces whole under torch.compile(fullgraph=True),
and the scan has a derivative, the second operator. Arguments come checked in shape and dtype (see
`functional`); what takes the numbers themselves to check is checked here or by the backend, on CPUs alone: on
a GPU a look at them would make the program wait.

Defined through `Library`, not by the decorator `custom_op`, whose checks of every call take longer than one
step of a small scan (pytorch issue 139500).
"""

import torch
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.selective_scan import backends, checks
from hexad.kernels.selective_scan.inputs import Inputs, empty_gradients, empty_outputs


def _selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
    softplus: bool,
    keep: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `functional`; states are (batch, states, channels), and `keep` asks for the checkpoints."""
    inputs = Inputs(u, delta, A, B, C, D, z, delta_bias, initial_state)
    if u.device.type == "cpu":
        checks.check_rates(A)
        if backend != "native":  # which looks for itself
            checks.check_numbers(inputs)
    with torch.autocast(u.device.type, enabled=False):  # it would sum in half precision
        return tuple(backends.forward(backend, inputs, softplus, keep))


def _selective_scan_backward(
    grad_y: Tensor,
    grad_last: Tensor | None,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
    checkpoints: Tensor,
    softplus: bool,
    backend: str,
) -> list[Tensor]:
    """The gradient of every input, one without numbers for each that is None."""
    inputs = Inputs(u, delta, A, B, C, D, z, delta_bias, initial_state)
    with torch.autocast(u.device.type, enabled=False):
        if checkpoints.shape[1] != inputs.chunks - 1:
            checkpoints = backends.forward(backend, inputs, softplus, keep=True).checkpoints
        return backends.backward(backend, grad_y, grad_last, inputs, checkpoints, softplus)


_library = torch.library.Library("hexad", "FRAGMENT")
for _function in (_selective_scan, _selective_scan_backward):
    _name = _function.__name__[1:]
    _schema = torch.library.infer_schema(_function, mutates_args=())
    _library.define(_name + _schema, tags=torch.Tag.pt2_compliant_tag)
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _function, _device)

selective_scan = torch.ops.hexad.selective_scan.default
selective_scan_backward = torch.ops.hexad.selective_scan_backward.default


@torch.library.register_fake("hexad::selective_scan", lib=_library)
def _(u, delta, A, B, C, D, z, delta_bias, initial_state, softplus, keep, backend):
    return tuple(empty_outputs(Inputs(u, delta, A, B, C, D, z, delta_bias, initial_state), keep))


@torch.library.register_fake("hexad::selective_scan_backward", lib=_library)
def _(grad_y, grad_last, u, delta, A, B, C, D, z, delta_bias, initial_state, checkpoints, softplus, backend):
    return empty_gradients(Inputs(u, delta, A, B, C, D, z, delta_bias, initial_state))


def _remember(ctx, inputs, output):
    *tensors, ctx.softplus, _, ctx.backend = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_y, grad_last, grad_checkpoints):
    if grad_y is None and grad_last is None:
        return (None,) * 12
    *tensors, checkpoints = ctx.saved_tensors
    if grad_y is None:
        grad_y = torch.zeros_like(tensors[0])
    grads = selective_scan_backward(grad_y, grad_last, *tensors, checkpoints, ctx.softplus, ctx.backend)
    pairs = zip(grads, ctx.needs_input_grad, strict=False)
    return (*(grad if needed else None for grad, needed in pairs), None, None, None)


torch.library.register_autograd("hexad::selective_scan", _backward, setup_context=_remember, lib=_library)


def _no_second_derivative(ctx, *_):
    raise InputError(
        "the selective scan has no second derivative; take its gradient without create_graph, or detach it"
    )


torch.library.register_autograd("hexad::selective_scan_backward", _no_second_derivative, lib=_library)
