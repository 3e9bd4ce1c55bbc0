"""The device that a command was told to run on; imported where torch is at hand."""

import torch

from hexad.core.errors import InputError


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is a CUDA GPU where there is one, else the CPU.

    Raises:
        InputError: it cannot be used on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # as the kind of device has it
        reason = str(error).partition("\n")[0]
        raise InputError(f"device {name!r} cannot be used here ({reason}); try cpu") from None
