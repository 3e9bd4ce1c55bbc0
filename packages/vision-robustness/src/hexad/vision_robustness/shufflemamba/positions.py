"""Where tokens stand: class and register tokens among the patches, and positions at other resolutions."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from hexad.core.errors import InputError


def register_order(patches: int, registers: int) -> tuple[Int[Tensor, " tokens"], Int[Tensor, " registers"]]:
    """Mamba-Reg's sequence: a register after every patches // (registers + 1) patches, the rest at the end.

    Args:
        patches: of the image.
        registers: register tokens.

    Returns:
        For each place the index into [patches, registers], and the registers' places.

    Raises:
        InputError: fewer patches than registers and one.
    """
    run = patches // (registers + 1)
    if run == 0:
        raise InputError(
            f"{registers} registers need an image of at least {registers + 1} patches, not {patches}"
        )
    spread = torch.arange(run * registers).view(registers, run)
    marks = torch.arange(patches, patches + registers)[:, None]
    order = torch.cat([torch.cat([spread, marks], 1).flatten(), torch.arange(run * registers, patches)])
    return order, torch.arange(registers) * (run + 1) + run


def resize_positions(
    positions: Float[Tensor, "1 patches dim"], old: tuple[int, int], new: tuple[int, int]
) -> Float[Tensor, "1 new_patches dim"]:
    """Patch positions of one grid for another, bicubic.

    Args:
        positions: of the patches alone, row by row.
        old: grid of `positions`, (rows, columns).
        new: grid wanted.

    Raises:
        InputError: `positions` is not of the grid `old`.
    """
    if positions.shape[1] != old[0] * old[1]:
        raise InputError(
            f"{positions.shape[1]} position embeddings are no grid of {old[0]} x {old[1]} patches"
        )
    if old == new:
        return positions
    grid = positions.reshape(1, *old, -1).permute(0, 3, 1, 2)
    # In float32: half types have no bicubic kernel on CPUs.
    resized = functional.interpolate(grid.float(), size=new, mode="bicubic", align_corners=False)
    return resized.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)


def resize_with_class(
    positions: Float[Tensor, "1 places dim"],
    old: tuple[int, int],
    new: tuple[int, int],
    place_of: Callable[[int], int],
) -> Float[Tensor, "1 new_places dim"]:
    """`resize_positions` where one of the positions is the class token's, which is kept."""
    place = place_of(old[0] * old[1])
    patches = torch.cat([positions[:, :place], positions[:, place + 1 :]], 1)
    resized = resize_positions(patches, old, new)
    place_new = place_of(new[0] * new[1])
    return torch.cat([resized[:, :place_new], positions[:, place : place + 1], resized[:, place_new:]], 1)


def check_patches(what: str, size: tuple[int, ...], patch: tuple[int, ...]) -> None:
    """Refuse a size that is no whole number of patches."""
    for name, pair in ((what, size), ("the patch size", patch)):
        if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
            raise InputError(f"{name} is {pair}; it must be one number of pixels, or (height, width)")
    if any(pixels < 1 or pixels % side for pixels, side in zip(size, patch, strict=True)):
        raise InputError(
            f"{what} of {size[0]} x {size[1]} pixels is no whole number of patches of {patch[0]} x {patch[1]}"
        )
