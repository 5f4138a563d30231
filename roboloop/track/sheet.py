"""Contact sheets: many small pictures on one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from roboloop.core.errors import DataError
from roboloop.core.files import replace_atomic, writing
from roboloop.core.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image

_GAP = 2


def write_sheet(pictures: Sequence[Array], path: Path, columns: int) -> Path:
    """Write pictures ``[C, H, W]`` uint8 row by row into one PNG; of stacked frames the last is shown."""
    out = io.BytesIO()
    draw_sheet(pictures, columns).save(out, format="PNG")
    with writing(path):
        replace_atomic(path, out.getvalue())
    return path


def draw_sheet(pictures: Sequence[Array], columns: int) -> Image:
    """Return pictures ``[C, H, W]`` uint8 as one."""
    from PIL import Image

    if not pictures:
        raise DataError("a sheet needs at least one picture")
    channels, height, width = pictures[0].shape
    rows = -(-len(pictures) // columns)
    sheet = np.zeros((rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP, 3), np.uint8)
    shown = 3 if channels % 3 == 0 else 1
    for i, picture in enumerate(pictures):
        y, x = i // columns * (height + _GAP), i % columns * (width + _GAP)
        sheet[y : y + height, x : x + width] = picture[-shown:].transpose(1, 2, 0)
    return Image.fromarray(sheet)
