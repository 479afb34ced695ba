"""Dropout as a pure function of (seed, step, site, token or text of the step), computed on the device.

MLX's own generator numbers the values of an array, so a text would get another mask in another micro-batch. Here a hash
of the value's place in the step decides. Integer arithmetic gives the same masks on the CPU and on Apple GPUs; they are
not those of the torch backend.
"""

import mlx.core as mx
import numpy as np

from holdfast.engine.mlx.text_rows import TextRows

_COLUMN, _HEAD, _KEY = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D  # odd numbers without pattern keep the inputs apart
_BY_TEXT = 1 << 16  # sites that drop by text, apart from those that drop by token
_TWO_32 = 1 << 32


class StepMasks:
    """The dropout masks of some texts in one step."""

    def __init__(self, seed: int, step: int, rows: TextRows):
        self._key = int(np.random.SeedSequence([seed, step]).generate_state(1)[0])
        self._rows = rows

    def tokens(self, x_RTH: mx.array, p: float, site: int) -> mx.array:
        """Drop values of each token."""
        return _dropped(x_RTH, p, _plus(self._token_hashes(site)[..., None], mx.arange(x_RTH.shape[-1]), _COLUMN))

    def texts(self, x_BH: mx.array, p: float, site: int) -> mx.array:
        """Drop values of each text."""
        hashes_B1 = _mixed(self._rows.text_places_B, self._site_key(site + _BY_TEXT))[:, None]
        return _dropped(x_BH, p, _plus(hashes_B1, mx.arange(x_BH.shape[-1]), _COLUMN))

    def attention(self, weights_RhTT: mx.array, p: float, site: int) -> mx.array:
        """Drop attention weights, by head, token and the position of the token that it sees."""
        heads_h11 = mx.arange(weights_RhTT.shape[1])[:, None, None]
        hashes_RhT1 = _plus(self._token_hashes(site)[:, None, :, None], heads_h11, _HEAD)
        return _dropped(weights_RhTT, p, _plus(hashes_RhT1, self._rows.positions_RT[:, None, None, :], _KEY))

    def _token_hashes(self, site: int) -> mx.array:
        return _mixed(self._rows.token_places_RT, self._site_key(site))

    def _site_key(self, site: int) -> int:
        return int(np.random.SeedSequence([self._key, site]).generate_state(1)[0])


def _plus(hashes: mx.array, numbers: mx.array, factor: int) -> mx.array:
    """Hashes that also depend on these numbers."""
    return _mixed(hashes + numbers.astype(mx.uint32) * mx.array(factor, dtype=mx.uint32), 0)


def _mixed(x: mx.array, key: int) -> mx.array:
    """A 32-bit hash of each value: the constants are those of "lowbias32" (C. Wellons, hash-prospector, 2018)."""
    x = x.astype(mx.uint32) ^ mx.array(key, dtype=mx.uint32)
    x = (x ^ (x >> 16)) * mx.array(0x7FEB352D, dtype=mx.uint32)
    x = (x ^ (x >> 15)) * mx.array(0x846CA68B, dtype=mx.uint32)
    return x ^ (x >> 16)


def _dropped(x: mx.array, p: float, hashes: mx.array) -> mx.array:
    kept = hashes >= mx.array(min(_TWO_32 - 1, round(p * _TWO_32)), dtype=mx.uint32)
    return x * (kept.astype(x.dtype) * (1 / (1 - p)))
