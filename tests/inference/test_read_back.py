"""Digests of weights. `tests/stack` reads the weights of real vLLM servers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rg_env.inference.vllm.read_back import columns_digest, digest, sampled_columns, whole_digest

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn]


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(DTYPES), st.data())
def test_the_digests_of_parts_add_up(rows: int, columns: int, dtype: torch.dtype, data: st.DataObject) -> None:
    """A server may split a tensor by rows and columns, transpose the parts, and hold some parts several times."""
    tensor = torch.randn(rows, columns).to(dtype)
    row, column = data.draw(st.integers(0, rows)), data.draw(st.integers(0, columns))
    along, across = 1 + columns * torch.arange(rows), torch.arange(columns)
    parts = [
        digest(tensor[some_rows, some_columns].T.contiguous(), [across[some_columns], along[some_rows]])
        for some_rows in (slice(row), slice(row, None))
        for some_columns in (slice(column), slice(column, None))
    ]
    assert (sum(int(part) for part in parts) - int(whole_digest(tensor))) % 2**64 == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (7,), (5, 3), (2, 3, 4)])
def test_any_change_of_one_element_changes_the_digest(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.full(shape, 0.5).to(dtype)
    flat = tensor.view(-1).view(torch.uint8)
    before = int(whole_digest(tensor))
    for position in range(0, len(flat), dtype.itemsize):
        flat[position] ^= 1  # the smallest change
        assert int(whole_digest(tensor)) != before
        flat[position] ^= 1
    assert int(whole_digest(tensor)) == before


def test_exchanged_elements_change_the_digest() -> None:
    tensor = torch.arange(12.0).view(3, 4)
    assert int(whole_digest(tensor)) != int(whole_digest(tensor.flip(0)))
    assert int(whole_digest(tensor)) != int(whole_digest(tensor.flip(1)))


@pytest.mark.parametrize("width", [1, 5, 16, 31, 100, 1000])
def test_all_columns_are_read_in_turn(width: int) -> None:
    """Each round reads at least 16 columns, or all."""
    read: set[int] = set()
    for round_ in range(max(1, width // 16)):
        columns = sampled_columns(width, round_).tolist()
        assert len(columns) >= min(16, width)
        assert read.isdisjoint(columns)
        read.update(columns)
    assert read == set(range(width))


def test_columns_equal_products_with_one_hot_rows() -> None:
    """A packed weight is read by multiplication, which is exact but loses the sign of zeros."""
    weight = torch.randn(6, 40).bfloat16()
    weight[2, 3] = -0.0
    columns = sampled_columns(40, 1)
    one_hot = torch.nn.functional.one_hot(columns, 40).bfloat16()
    product = torch.zeros_like(weight)
    product[:, columns] = torch.nn.functional.linear(one_hot, weight).T
    assert int(columns_digest(weight, 1)) == int(columns_digest(product, 1))
    product[0, columns[0]] += 0.01
    assert int(columns_digest(weight, 1)) != int(columns_digest(product, 1))
