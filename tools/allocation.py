"""Which option each item takes, so that the sum of costs is least and the sum of sizes within a budget.

Owns the knapsack and nothing of what is packed: sizes are bytes, costs any numbers that add up. The best choice is
found on sizes rounded up to a granule, by dynamic programming over what is spent beyond the smallest options; then what
rounding left is spent, the best step first. (Kellerer, Pferschy and Pisinger 2004, Knapsack Problems, chapter 11: the
multiple-choice knapsack.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Options = Sequence[tuple[int, float]]  # (size, cost) of each; costs are finite

_GRANULES = 1 << 15  # of the budget beyond the smallest options: with 200 items rounding costs a third of a percent
_MOST_CELLS = 1 << 26  # of the table, a byte each


def bounds(items: Sequence[Options]) -> tuple[int, int]:
    """The smallest and the largest sum of sizes."""
    return sum(min(size for size, _ in item) for item in items), sum(max(size for size, _ in item) for item in items)


def allocate(items: Sequence[Options], budget: int) -> list[int]:
    """The number of each item's option. ValueError where even the smallest options are too large."""
    least, _ = bounds(items)
    if least > budget:
        raise ValueError(f"the smallest options have {least} bytes, more than {budget}")
    rows = [_undominated(item) for item in items]
    taken = _by_table(items, rows, budget - least)
    _spend(items, rows, taken, budget)
    return [row[at] for row, at in zip(rows, taken, strict=True)]


def _undominated(item: Options) -> list[int]:
    """The options that are worth their size, the smallest first: each larger one costs less."""
    found: list[int] = []
    for i in sorted(range(len(item)), key=lambda i: (item[i], i)):
        if not found or item[i][1] < item[found[-1]][1]:
            found.append(i)
    return found


def _by_table(items: Sequence[Options], rows: Sequence[Sequence[int]], spare: int) -> list[int]:
    """Places in rows. best[j]: the least cost of the items so far with at most j granules spent."""
    n = max(1, min(_GRANULES, _MOST_CELLS // max(len(items), 1)))
    granule = max(1, -(-spare // n))
    n = spare // granule
    best: npt.NDArray[np.float64] = np.zeros(n + 1)
    chosen: list[npt.NDArray[np.uint8]] = []
    spent: list[list[int]] = []
    for item, row in zip(items, rows, strict=True):
        granules = [-(-(item[i][0] - item[row[0]][0]) // granule) for i in row]
        now, choice = best + item[row[0]][1], np.zeros(n + 1, np.uint8)
        for at in range(1, len(row)):
            k = granules[at]
            if k > n:
                break
            cost = best[: n + 1 - k] + item[row[at]][1]
            better = cost < now[k:]
            now[k:][better] = cost[better]
            choice[k:][better] = at
        best = now
        chosen.append(choice)
        spent.append(granules)
    taken, left = [], n
    for choice, granules in zip(reversed(chosen), reversed(spent), strict=True):
        taken.append(int(choice[left]))
        left -= granules[taken[-1]]
    return taken[::-1]


def _spend(items: Sequence[Options], rows: Sequence[Sequence[int]], taken: list[int], budget: int) -> None:
    """Takes larger options for what the budget has left, as long as one fits: first what saves most for its size."""
    left = budget - sum(item[row[at]][0] for item, row, at in zip(items, rows, taken, strict=True))
    while True:
        steps = []
        for i, (item, row) in enumerate(zip(items, rows, strict=True)):
            size, cost = item[row[taken[i]]]
            for at in range(taken[i] + 1, len(row)):
                more, less = item[row[at]][0] - size, cost - item[row[at]][1]
                if more <= left:
                    steps.append((less / max(more, 1), -i, at, more))
        if not steps:
            return
        _, i, at, more = max(steps)
        taken[-i] = at
        left -= more
