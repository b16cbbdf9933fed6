"""Packed weights: the error of a code, the layout, and values that cannot be packed."""

from __future__ import annotations

import numpy as np
import pytest

from handheld.errors import HandheldError
from handheld.packing import Packing, from_meta, pack, to_meta, unpack, unpacked_state


def packing(bits: int, *shape: int) -> Packing:
    return Packing(bits, shape, ("w",))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", [(512,), (7, 129), (3, 5, 7, 11), (1, 1)])
def test_a_value_is_at_most_one_step_from_its_code(bits, shape):
    """Half a step, except for values near the opposite of the group's largest one, whose code is cut off."""
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    how = packing(bits, *shape)
    words, scales = pack(values, how)
    assert (words.dtype, words.shape, scales.shape) == (np.int32, (how.words,), (how.scales,))
    back = unpack(words, scales, how)
    assert back.shape == shape and back.dtype == np.float32
    step = np.repeat(np.abs(scales), 64)[: values.size].reshape(shape)
    error = np.abs(back - values)
    assert (error <= step * 1.0001).all()
    assert np.mean(error <= step * 0.5001) > 0.9
    assert values.size == 1 or error.max() > 0


def test_four_bits_take_about_an_eighth_of_the_memory():
    how = packing(4, 512, 512)
    assert 4 * (how.words + how.scales) == 512 * 512 * 4 * (1 / 8 + 1 / 64)


def test_the_layout_is_as_described():
    """Word i of a block holds value i of each group, the first group in the lowest bits."""
    values = np.zeros((8, 64), np.float32)
    values[:, 0] = -1.0  # code 0 in place 0; the other codes are those of zero, 8
    values[3, 5] = 0.5  # 0.5 / (1 / 8) = 4 steps above zero: code 12
    words, scales = pack(values, packing(4, 8, 64))
    assert words.shape == (64,) and np.all(scales == 0.125)
    assert words[0] == 0
    codes = [(int(words[5]) >> (4 * group)) & 15 for group in range(8)]
    assert codes == [8, 8, 8, 12, 8, 8, 8, 8]


def test_zeros_stay_zeros_and_the_largest_value_is_exact():
    values = np.zeros(128, np.float32)
    values[64:] = np.linspace(-0.3, 0.7, 64)
    back = unpack(*pack(values, packing(4, 128)), packing(4, 128))
    assert not back[:64].any() and back[127] == np.float32(0.7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(HandheldError, match="w holds NaN or infinity"):
        pack(np.full((64, 64), bad, np.float32), packing(8, 64, 64))


def test_a_file_may_hold_anything_in_the_list_of_packed_weights():
    how = {"a.weight": packing(8, 3, 4)}
    assert from_meta({"packed": to_meta(how)}) == how and from_meta({}) == {}
    for wrong in ("text", {"a": 1}, {"a": (5, (1,), ("a",), "float32")}, {"a": (4, (-1,), ("a",), "float32")}):
        with pytest.raises(HandheldError, match="malformed"):
            from_meta({"packed": wrong})
    with pytest.raises(HandheldError, match=r"a\.weight is packed in 8 bits"):
        unpacked_state({"a.weight.words": np.zeros(1, np.int32)}, how)
