"""Matching costs between the patches of an image and those of its templates, as a volume.

For each layer the cost of query position p and template position q is 1 - cos(F_S[p], F_T[q]), for all pairs.
The k smallest of each p are kept; layers are stacked as depth. Source: Zhang et al., ICML 2025, arXiv
2505.01476, and the code of its authors (ZHE-SAPI/CostFilter-AD).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count

Order = Literal["position", "rank"]
ORDERS: tuple[Order, ...] = ("position", "rank")
MAX_BYTES = 256 * 2**20
"""What matching may allocate besides its result, unless told otherwise."""


@dataclass(frozen=True)
class CostVolume:
    """Matching costs of a batch.

    Attributes:
        volume: the kept costs, at the network's size, layers as depth.
        minima: the smallest cost of each position, a map a layer, at the network's size.
        nearest: the same on each layer's own grid.
    """

    volume: Float[Tensor, "batch k depth size size"]
    minima: Float[Tensor, "batch depth size size"]
    nearest: list[Float[Tensor, "batch height width"]]


def cosine_costs(
    query: Float[Tensor, "batch n channels"], template: Float[Tensor, "... m channels"]
) -> Float[Tensor, "batch n m"]:
    """1 - cos for all pairs, in [0, 2]; rows are query positions. A feature of length zero costs 1.

    Args:
        query: patches of the images.
        template: patches of the templates, `(batch or 1, m, channels)`, or `(m, channels)` for all images.
    """
    return _costs(_unit(query), _unit(template))


def smallest_costs(
    query: Float[Tensor, "batch n channels"],
    template: Float[Tensor, "... m channels"],
    k: int,
    order: Order = "rank",
    max_bytes: int = MAX_BYTES,
) -> Float[Tensor, "batch n k"]:
    """The k smallest costs of each query position, without the whole matrix of costs.

    Besides the result and the features, no more than about `max_bytes` are allocated at a time: query
    positions and templates are taken in blocks, and only the best k so far are kept.

    Args:
        query: patches of the images.
        template: patches of the templates, as in `cosine_costs`.
        k: how many to keep, at most m.
        order: "rank" sorts them, the smallest first. "position" leaves them in the order of their template
            positions, which says where a match lies only if k = m.
        max_bytes: bound of the memory in between.

    Raises:
        InputError: k is not in 1 ... m, or `order` is unknown.
    """
    check_choice("order", order, ORDERS)
    check_count("k", k)
    positions = template.shape[-2]
    if k > positions:
        raise InputError(f"k is {k}, but the templates have only {positions} positions; lower k")
    query, template = _unit(query), _unit(template)
    kind = torch.promote_types(query.dtype, template.dtype)
    query, template = query.to(kind), template.to(kind)
    batch, rows, _ = query.shape
    whole = k == positions and order == "position"
    # A block of c template positions costs 16 bytes a pair, and the best so far 32 for each that is kept.
    columns = min(positions, max(k, 4096))
    block = max(1, max_bytes // (batch * (16 * columns + (0 if whole else 32 * k))))
    kept = query.new_empty(batch, rows, k)
    for first in range(0, rows, block):
        part = query[:, first : first + block]
        target = kept[:, first : first + block]
        if whole:
            for start in range(0, positions, columns):
                stop = start + columns
                target[:, :, start:stop] = _costs(part, template[..., start:stop, :])
        else:
            target.copy_(_best(part, template, k, order, columns))
    return kept


def _best(query: Tensor, template: Tensor, k: int, order: Order, columns: int) -> Tensor:
    """The k smallest costs of a block of rows, merged over blocks of template positions."""
    if k == 1:  # a minimum is far faster than a sort
        blocks = range(0, template.shape[-2], columns)
        least = [_costs(query, template[..., start : start + columns, :]).amin(-1) for start in blocks]
        return torch.stack(least, -1).amin(-1, keepdim=True)
    best: Tensor | None = None
    places: Tensor | None = None
    for start in range(0, template.shape[-2], columns):
        costs = _costs(query, template[..., start : start + columns, :])
        number = torch.arange(start, start + costs.shape[-1], device=costs.device).expand_as(costs)
        if best is not None and places is not None:
            costs = torch.cat((best, costs), -1)
            number = torch.cat((places, number), -1)
        best, chosen = costs.topk(min(k, costs.shape[-1]), dim=-1, largest=False, sorted=True)
        places = number.gather(-1, chosen)
    assert best is not None
    assert places is not None
    if order == "position":
        best = best.gather(-1, places.argsort(-1))
    return best


def _unit(features: Tensor) -> Tensor:
    """Features of length one, in float32 at least: a half float would lose the epsilon."""
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    # By the largest first, so that no square overflows.
    features = features / features.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    return features / features.norm(dim=-1, keepdim=True).clamp_min(0.5)


def _costs(query: Tensor, template: Tensor) -> Tensor:
    """1 - q · t of unit vectors; rounding may leave [0, 2] by some 1e-7, which is cut off."""
    return torch.matmul(query, template.transpose(-1, -2)).neg_().add_(1).clamp_(0, 2)


def kept_costs(
    queries: Sequence[Float[Tensor, "batch channels height width"]],
    templates: Sequence[Tensor],
    k: int | None = None,
    order: Order = "position",
    max_bytes: int = MAX_BYTES,
) -> list[Float[Tensor, "batch k height width"]]:
    """The kept matching costs of each layer, on its own grid.

    Args:
        queries: feature grids, one a layer.
        templates: for each layer either feature grids `(batch or 1, templates, channels, height, width)` of
            the query's height and width, or a bank of patches `(m, channels)` that have no place.
        k: how many costs to keep a position; default all. Layers must have as many positions in common.
        order: see `smallest_costs`; a bank of patches has no positions, so it needs "rank".
        max_bytes: see `smallest_costs`.

    Raises:
        InputError: no layers or templates, unlike grids, too large a k, or features that are not finite.
    """
    if not queries or len(queries) != len(templates):
        raise InputError(
            f"there are {len(queries)} layers of the query and {len(templates)} of templates; give as many, "
            "at least one"
        )
    kept = []
    for layer, (query, template) in enumerate(zip(queries, templates, strict=True)):
        bank = _as_patches(query, template, layer, order)
        if k is None:
            k = bank.shape[-2]
        rows = query.flatten(2).transpose(1, 2)
        try:
            costs = smallest_costs(rows, bank, k, order, max_bytes)
        except InputError as error:
            raise InputError(f"layer {layer}: {error}") from None
        kept.append(costs.transpose(1, 2).unflatten(2, query.shape[2:]))
    return kept


def stack_costs(kept: Sequence[Float[Tensor, "batch k height width"]], order: Order, size: int) -> CostVolume:
    """The volume of `kept_costs`: scaled bilinearly with aligned corners, as the authors do, and stacked."""
    check_count("size", size)
    nearest = [grid.amin(1) if order == "position" else grid[:, 0] for grid in kept]
    volume = torch.stack([_scaled(grid, size) for grid in kept], 2)
    return CostVolume(volume, torch.cat([_scaled(grid[:, None], size) for grid in nearest], 1), nearest)


def cost_volume(
    queries: Sequence[Float[Tensor, "batch channels height width"]],
    templates: Sequence[Tensor],
    k: int | None = None,
    order: Order = "position",
    size: int = 64,
    max_bytes: int = MAX_BYTES,
) -> CostVolume:
    """The matching cost volume of a batch of images against templates.

    The result takes 4 * batch * k * depth * size² bytes. Arguments and errors are those of `kept_costs`;
    `size` is the height and width of the volume.
    """
    return stack_costs(kept_costs(queries, templates, k, order, max_bytes), order, size)


def _as_patches(query: Tensor, template: Tensor, layer: int, order: Order) -> Tensor:
    """Templates of a layer as `(m, channels)` or `(batch, m, channels)`, checked against the query."""
    for what, features in (("query", query), ("templates", template)):
        if not isinstance(features, Tensor) or not features.is_floating_point():
            shown = features.dtype if isinstance(features, Tensor) else type(features).__name__
            raise InputError(f"layer {layer}: the {what} must be a tensor of floats, not {shown}")
    if query.ndim != 4 or len(query) == 0:
        raise InputError(
            f"layer {layer}: a query must be (batch, channels, height, width), not {tuple(query.shape)}"
        )
    if template.ndim == 5:
        if template.shape[1] == 0:
            raise InputError(f"layer {layer}: there are no templates; give at least one normal image")
        if template.shape[3:] != query.shape[2:]:
            raise InputError(
                f"layer {layer}: the query's grid is {tuple(query.shape[2:])} and the templates' "
                f"{tuple(template.shape[3:])}; use images of one size"
            )
        if template.shape[0] not in (1, query.shape[0]):
            raise InputError(
                f"layer {layer}: templates are of {template.shape[0]} images, queries of {query.shape[0]}"
            )
        channels = template.shape[2]
        bank = template.permute(0, 1, 3, 4, 2).flatten(1, 3)
    elif template.ndim == 2:
        if order == "position":
            raise InputError(f'layer {layer}: a bank of patches has no positions; use order="rank"')
        if template.shape[0] == 0:
            raise InputError(f"layer {layer}: there are no templates; the bank of patches is empty")
        channels, bank = template.shape[1], template
    else:
        raise InputError(
            f"layer {layer}: templates must be (batch, templates, channels, height, width) or (m, channels), "
            f"not {tuple(template.shape)}"
        )
    if channels != query.shape[1]:
        raise InputError(
            f"layer {layer}: the query has {query.shape[1]} channels and the templates {channels}"
        )
    for what, features in (("query", query), ("templates", template)):
        if not bool(torch.isfinite(features).all()):
            raise InputError(f"layer {layer}: features of the {what} are not finite (NaN or infinity)")
    return bank


def _scaled(maps: Tensor, size: int) -> Tensor:
    return functional.interpolate(maps, size=(size, size), mode="bilinear", align_corners=True)
