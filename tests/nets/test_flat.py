"""Many tensors in one vector, and how first weights are drawn."""

from __future__ import annotations

import pytest
import torch

from roboloop.nets.flat import ALIGN, Layout
from roboloop.nets.orthogonal import orthogonal


def test_views_alias_the_flat_vector_and_start_on_cache_lines() -> None:
    layout = Layout({"a": (3, 5), "b": (2,)})
    flat = layout.zeros()
    views = layout.views(flat)
    views["b"].fill_(7.0)
    assert flat[ALIGN : ALIGN + 2].tolist() == [7.0, 7.0]
    assert flat.sum() == 14.0
    assert all(view.data_ptr() % 64 == flat.data_ptr() % 64 for view in views.values())


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (5, 5)])
def test_orthogonal_weights_keep_lengths_up_to_the_gain(shape: tuple[int, int]) -> None:
    matrix = orthogonal(torch.empty(shape), 2.0)
    short = matrix if shape[0] <= shape[1] else matrix.t()
    torch.testing.assert_close(short @ short.t(), 4.0 * torch.eye(min(shape)), atol=1e-5, rtol=0)
