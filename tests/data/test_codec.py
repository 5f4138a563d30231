"""Compression gives back every bit, whatever the pictures, and says so when bytes are not its own."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

from roboloop.core.types import Array
from roboloop.data.codec import Codec


def pictures(colours: int, rows: int = 5, channels: int = 3) -> Array:
    """Return pictures ``[rows, channels, 12, 20]`` that use exactly so many colours."""
    rng = np.random.default_rng(colours)
    numbers = rng.choice(1 << 24, colours, replace=False).astype("<u4")
    palette = numbers.view(np.uint8).reshape(-1, 4)[:, :channels]
    which = rng.permutation(np.arange(rows * 12 * 20) % colours).reshape(rows, 12, 20)
    return np.ascontiguousarray(palette[which].transpose(0, 3, 1, 2))


def back(arrays: list[Array]) -> list[Array]:
    """Return what comes back from the codec."""
    codec, out = Codec(), [np.zeros_like(array) for array in arrays]
    codec.decode(codec.encode(arrays), out)
    return out


@pytest.mark.parametrize("colours", [1, 2, 255, 256, 257, 1000])
def test_pictures_of_few_and_of_many_colours_come_back_bit_for_bit(colours: int) -> None:
    given = pictures(colours)
    np.testing.assert_array_equal(back([given])[0], given)


@pytest.mark.parametrize("channels", [1, 2])
def test_pictures_with_other_channels_than_three_come_back(channels: int) -> None:
    given = pictures(40, channels=channels)
    np.testing.assert_array_equal(back([given])[0], given)


def test_several_planes_and_records_share_a_piece() -> None:
    record = np.dtype([("vector", np.float32, (3,)), ("image", np.uint8, (3, 12, 20))])
    records = np.zeros(5, record)
    records["vector"] = np.random.default_rng(0).normal(size=(5, 3))
    records["image"] = pictures(30)
    given = [records, pictures(300), np.arange(5, dtype=np.int64)]
    for one, other in zip(back(given), given, strict=True):
        np.testing.assert_array_equal(one, other)


def test_pictures_from_a_palette_take_a_third_of_the_bytes() -> None:
    """Before compression: one byte per pixel instead of three."""
    few, many = (len(zstandard.decompress(Codec().encode([pictures(n, rows=20)]))) for n in (256, 257))
    assert few == 2 + 3 * 256 + 20 * 12 * 20
    assert many == 2 + 3 * 20 * 12 * 20


def test_one_codec_keeps_nothing_of_the_pictures_before() -> None:
    codec, first, second = Codec(), pictures(100), pictures(101)
    alone = Codec().encode([second])
    codec.encode([first])
    assert codec.encode([second]) == alone


@pytest.mark.parametrize("colours", [30, 300])
def test_bytes_that_are_cut_or_too_many_are_refused(colours: int) -> None:
    given = [pictures(colours), np.arange(5, dtype=np.float32)]
    plain = zstandard.decompress(Codec().encode(given))
    out = [np.zeros_like(array) for array in given]
    for wrong in (plain[:1], plain[:50], plain[:-1], plain + b"x", b""):
        with pytest.raises(ValueError, match=r"too early|instead of|decompressed"):
            Codec().decode(zstandard.compress(wrong), out)


def test_a_pixel_of_no_colour_is_refused() -> None:
    plain = bytearray(zstandard.decompress(Codec().encode([pictures(30)])))
    plain[-1] = 30
    with pytest.raises(ValueError, match="not of its colours"):
        Codec().decode(zstandard.compress(bytes(plain)), [pictures(30)])
