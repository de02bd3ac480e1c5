"""Which rows of a batch an update needs: mini-batches in which no token is trained are left out."""

from collections.abc import Sequence


def rows_to_update(trained: Sequence[int], *, ranks: int, mini_batch: int) -> list[int]:
    """The rows, in order, of those mini-batches that train at least one token; empty if there is none.

    `trained[r]` is how many tokens of row r count in the loss. verl cuts a batch into `ranks` equal parts, one a
    data-parallel rank, and each part into runs of `mini_batch / ranks` rows; the k-th runs of all ranks are mini-batch
    k. A mini-batch goes as a whole, so that all ranks take the same number of steps and the others stay as they are.
    Where the numbers do not divide, all rows stay: verl itself says then what is wrong.
    """
    rows = len(trained)
    if not any(trained):
        return []
    if ranks < 1 or mini_batch % ranks or rows % ranks or not mini_batch or (rows // ranks) % (mini_batch // ranks):
        return list(range(rows))
    run, part = mini_batch // ranks, rows // ranks
    kept = {k for k in range(part // run) if any(trained[i] for i in _mini_batch(k, ranks, part, run))}
    return [i for i in range(rows) if (i % part) // run in kept]


def _mini_batch(number: int, ranks: int, part: int, run: int) -> list[int]:
    return [rank * part + number * run + i for rank in range(ranks) for i in range(run)]
