"""From the buckets of many tensors to 64 bits for each of them, and to 64 bits for all.

digest of a tensor = sum over its buckets of (s ^ (s >> 32)) * w(place) mod 2^64, where s is the
bucket, >> brings in zeros, and w(place) is an odd number drawn from the place within the tensor.
A digest of all does the same with the digests of the tensors. Both steps before the sum are
one-to-one, so a change of one bucket always changes the digest. The shift is what keeps two flips
of the highest bit from cancelling: times any odd number, 2^63 is 2^63.
"""

from collections.abc import Sequence

import torch

from harness.digest.mix import odd

_HALF = 32
_LOWER = (1 << _HALF) - 1


class Folding:
    """Folds bucket vectors of one shape on one device; all it writes is allocated here.

    `counts` are the buckets of each tensor, in order.
    """

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        with torch.inference_mode(False), torch.no_grad():
            ends = [0]
            for count in counts:
                ends.append(ends[-1] + count)
            self._ends = torch.tensor(ends, dtype=torch.int64).to(device)
            self._keys = _keys(counts).to(device)
            self._tensor_keys = odd(torch.arange(len(counts), dtype=torch.int64)).to(device)
            self._mixed = torch.zeros_like(self._keys)
            # One more in front, so that the sum up to a place is at that place.
            self._sums = torch.zeros(ends[-1] + 1, dtype=torch.int64, device=device)
            self._behind = self._sums[1:]
            self._picked = torch.zeros_like(self._ends)
            self._upto, self._before = self._picked[1:], self._picked[:-1]
            self._digests = torch.zeros_like(self._tensor_keys)
            self._weighed = torch.zeros_like(self._digests)

    def digests(self, vector: torch.Tensor) -> torch.Tensor:
        """One int64 for each tensor; this object's own, overwritten by the next call."""
        _mix(vector, self._keys, self._mixed)
        torch.cumsum(self._mixed, 0, out=self._behind)
        torch.index_select(self._sums, 0, self._ends, out=self._picked)
        return torch.sub(self._upto, self._before, out=self._digests)

    def fold(self, digests: torch.Tensor) -> torch.Tensor:
        """One int64, without dimensions, over the digests of all tensors and their order."""
        _mix(digests, self._tensor_keys, self._weighed)
        return self._weighed.sum()


def _mix(numbers: torch.Tensor, keys: torch.Tensor, out: torch.Tensor) -> None:
    torch.bitwise_right_shift(numbers, _HALF, out=out)  # repeats the sign, hence the mask
    out.bitwise_and_(_LOWER).bitwise_xor_(numbers).mul_(keys)


def _keys(counts: Sequence[int]) -> torch.Tensor:
    """A key for each bucket, from its place within its tensor."""
    longest = odd(torch.arange(max(counts, default=0), dtype=torch.int64) + (1 << 40))
    return torch.cat([longest[:count] for count in counts]) if counts else longest
