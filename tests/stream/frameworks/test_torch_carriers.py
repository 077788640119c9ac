"""The carriers of PyTorch: small arrays are copied to a device together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stream.frameworks.torch_carriers import copy_together

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "uint16", "int32", "int64", "float16", "float32", "float64"]
)
def test_arrays_that_are_copied_together_keep_their_values_and_types(dtype: str) -> None:
    arrays = [
        np.arange(21).reshape(3, 7).astype(dtype),
        np.array(1, dtype),
        np.zeros((0, 4), dtype),
        np.arange(24).reshape(2, 3, 4).astype(dtype)[:, ::2].transpose(2, 0, 1),
    ]
    tensors = copy_together(arrays, CPU, pin=False)
    for array, tensor in zip(arrays, tensors, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype
        assert tensor.is_contiguous()


def test_arrays_that_are_copied_together_share_one_block_and_no_bytes() -> None:
    arrays = [np.full(5, number, np.int8) for number in range(4)]
    tensors = copy_together(arrays, CPU, pin=False)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    tensors[1].fill_(9)
    assert [tensor.tolist() for tensor in tensors] == [[0] * 5, [9] * 5, [2] * 5, [3] * 5]


def test_no_array_is_no_tensor() -> None:
    assert copy_together([], CPU, pin=False) == []
