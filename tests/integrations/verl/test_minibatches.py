"""What is left out of an update, against verl's way of cutting a batch, written out."""

from agentkit_verl.minibatches import rows_to_update
from hypothesis import given
from hypothesis import strategies as st


def cut(rows: list[int], ranks: int, mini_batch: int) -> list[list[int]]:
    """The rows of each mini-batch: chunk over the ranks, then each chunk in runs, then the k-th runs together."""
    part = len(rows) // ranks
    parts = [rows[rank * part : (rank + 1) * part] for rank in range(ranks)]
    run = mini_batch // ranks
    runs = [[chunk[i : i + run] for i in range(0, part, run)] for chunk in parts]
    return [[row for mine in those for row in mine] for those in zip(*runs, strict=True)]


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], int, int]:
    ranks, run, number = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rows = ranks * run * number
    return draw(st.lists(st.sampled_from([0, 0, 0, 5]), min_size=rows, max_size=rows)), ranks, ranks * run


@given(batches())
def test_exactly_the_mini_batches_that_train_nothing_go(batch: tuple[list[int], int, int]) -> None:
    trained, ranks, mini_batch = batch
    kept = rows_to_update(trained, ranks=ranks, mini_batch=mini_batch)
    before = cut(list(range(len(trained))), ranks, mini_batch)
    wanted = [rows for rows in before if any(trained[row] for row in rows)]
    assert cut(kept, ranks, mini_batch) == wanted if kept else not wanted
    assert kept == sorted(kept)


@given(st.lists(st.integers(0, 2), max_size=12), st.integers(0, 5), st.integers(0, 9))
def test_what_verl_would_refuse_is_left_to_verl(trained: list[int], ranks: int, mini_batch: int) -> None:
    kept = rows_to_update(trained, ranks=ranks, mini_batch=mini_batch)
    assert set(kept) >= {row for row, tokens in enumerate(trained) if tokens}
    assert bool(kept) == any(trained)
