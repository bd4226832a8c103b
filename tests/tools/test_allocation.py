"""The knapsack against trying everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pyedge.tools.allocation import allocate, bounds


def total(items: list[list[tuple[int, float]]], taken: list[int]) -> tuple[int, float]:
    chosen = [item[at] for item, at in zip(items, taken, strict=True)]
    return sum(size for size, _ in chosen), sum(cost for _, cost in chosen)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    items = [
        [(int(size), float(cost)) for size, cost in zip(rng.integers(1, 60, n), rng.random(n), strict=True)]
        for n in rng.integers(1, 5, 6)
    ]
    low, high = bounds(items)
    budget = int(rng.integers(low, high + 1))
    every = itertools.product(*(range(len(item)) for item in items))
    best = min(cost for size, cost in (total(items, list(t)) for t in every) if size <= budget)
    size, cost = total(items, allocate(items, budget))
    assert size <= budget
    assert cost == pytest.approx(best)


def test_what_rounding_leaves_is_spent() -> None:
    """Sizes are rounded to granules; no step that would still fit is left out."""
    rng = np.random.default_rng(1)
    items = []
    for rows in rng.integers(10**6, 10**8, 200):
        bits, errors = [2.625, 3.4375, 4.5, 5.5, 6.5625, 8.5], [0.1, 0.03, 0.006, 0.0016, 0.0004, 3e-5]
        s = float(rng.lognormal())
        items.append([(int(b * rows) // 8, s * e) for b, e in zip(bits, errors, strict=True)])
    budget = sum(bounds(items)) // 2
    taken = allocate(items, budget)
    size, cost = total(items, taken)
    assert 0.999 * budget < size <= budget
    more = [
        item[at][0] - item[now][0] for item, now in zip(items, taken, strict=True) for at in range(now + 1, len(item))
    ]
    assert min(more) > budget - size
    assert cost < total(items, [2] * 200)[1]
    assert allocate(items, budget) == taken


def test_bounds() -> None:
    items = [[(5, 1.0), (9, 0.5)], [(2, 3.0)]]
    assert bounds(items) == (7, 11)
    assert allocate(items, 7) == [0, 0]
    assert allocate(items, 10**12) == [1, 0]
    with pytest.raises(ValueError, match="the smallest options have 7 bytes, more than 6"):
        allocate(items, 6)
    assert allocate([], 0) == []


def test_a_larger_option_that_costs_more_is_never_taken() -> None:
    assert allocate([[(1, 1.0), (2, 2.0), (3, 0.5), (4, 0.5)]], 10) == [2]
