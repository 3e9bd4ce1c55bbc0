"""Batches of a small network on all cores: one core each."""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def side_by_side(
    function: Callable[[Item], Result], items: Sequence[Item], threads: int
) -> Generator[Iterator[Result]]:
    """The results of a function on items, in their order, by threads that each compute on one core.

    One core a batch beats all cores on each batch: tensors are small, and threads that share one wait for
    each other, for long where another program holds a core.
    """
    if threads == 1:
        yield map(function, items)
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)
