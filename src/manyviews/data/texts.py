"""Texts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyviews.data.column import BatchColumn
from manyviews.data.errors import DatasetError
from manyviews.data.tokenizer import Tokenizer
from manyviews.utils import describe_type

MAX_BYTES = 256
"""Maximum length of a text in UTF-8 bytes; longer ones are cut."""
NUM_HASHES = 512
"""Number of features that character trigrams are hashed to."""
HASH_FACTORS = np.array([0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D], np.uint32)
"""Odd constants of about 2^32 times the golden ratio and of xxHash, so that all bits of a character reach the top."""


@dataclass(frozen=True, eq=False, repr=False)
class Texts(BatchColumn):
    """Texts, as their UTF-8 bytes. An empty text is missing.

    Examples:
        >>> tokens, lengths = Texts(("cat", "", "café")).load(torch.arange(3))
        >>> tokens.shape, lengths
        (torch.Size([3, 5]), tensor([3, 1, 5]))
    """

    kind = "text"
    default_encoder = "transformer"
    values: tuple[str, ...] = field(repr=False)
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    """Makes the tokens of a pretrained encoder; None for bytes."""

    def __post_init__(self) -> None:
        if isinstance(self.values, str):
            raise DatasetError(f"expected a list of texts, got the text {self.values[:80]!r}: put it into a list")
        object.__setattr__(self, "values", tuple(self.values))
        if invalid := [value for value in self.values if not isinstance(value, str)]:
            raise DatasetError(f"texts must be str, got {describe_type(invalid[0])}")
        if not all(self.values):
            exists = torch.tensor([bool(text) for text in self.values])
            object.__setattr__(self, "mask", self.get_mask() & exists)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_small(self) -> bool:
        return True

    def select(self, index: Tensor) -> Texts:
        return replace(self, values=tuple(self.values[i] for i in index.tolist()), mask=self._select_mask(index))

    def prepare(self, preprocessing: Mapping[str, Any]) -> Texts:
        """Return the texts with the tokenizer of an encoder, if it has one."""
        options = {name: preprocessing[name] for name in ("max_tokens", "pad_id") if name in preprocessing}
        text = preprocessing.get("tokenizer")
        return replace(self, tokenizer=None if text is None else Tokenizer(text, **options))

    def describe(self) -> str:
        return "texts"

    def describe_lengths(self) -> str:
        """Describe the lengths in UTF-8 bytes, before long texts are cut."""
        exists = zip(self.values, self.get_mask().tolist(), strict=True)
        lengths = [len(_encode(text)) for text, is_valid in exists if is_valid]
        return f"{min(lengths)} to {max(lengths)}, median {statistics.median_low(lengths)}" if lengths else ""

    def list_content(self) -> list[Tensor | bytes]:
        encoded = [text.encode("utf-8", "surrogatepass") for text in self.values]
        return [torch.tensor([len(text) for text in encoded]), b"".join(encoded), self.get_mask()]

    def load(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Load bytes, uint8 (B, T), padded with zeros to the longest text that is not missing, and lengths (B,).

        A text has at most MAX_BYTES bytes, of whole characters. A missing one is all zeros and has length 1. With a
        tokenizer, load token ids, int64 (B, T).
        """
        mask = self.get_mask()
        if self.tokenizer is not None:
            return self.tokenizer.encode([self.values[i] if mask[i] else "?" for i in index.tolist()])
        encoded = [_cut(_encode(self.values[i])) if mask[i] else b"\0" for i in index.tolist()]
        longest = max(map(len, encoded), default=1)
        padded = b"".join(text.ljust(longest, b"\0") for text in encoded)
        tokens = np.frombuffer(padded, np.uint8).reshape(len(encoded), longest).copy()
        return torch.from_numpy(tokens), torch.tensor([len(text) for text in encoded], dtype=torch.long)

    def show(self, i: int) -> str:
        return self.values[i]

    def show_view(self, view: Tensor) -> str:
        return (
            bytes(view.tolist()).decode("utf-8", "replace") if self.tokenizer is None else self.tokenizer.decode(view)
        )

    def make_raw_features(self, reference: Texts, summary: str = "") -> Tensor:  # noqa: ARG002 (for other kinds)
        """Count hashed character trigrams, (n, NUM_HASHES) with rows of unit norm (zero for a missing text)."""
        counts = torch.from_numpy(np.stack([_count_trigrams(text) for text in self.values]))
        return torch.where(self.get_mask()[:, None], counts, 0)

    @classmethod
    def from_values(cls, values: Any) -> Texts:
        return cls(values)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # lone surrogates, which JSON may have


def _cut(encoded: bytes) -> bytes:
    if len(encoded) <= MAX_BYTES:
        return encoded
    return encoded[:MAX_BYTES].decode("utf-8", "ignore").encode()


def _count_trigrams(text: str) -> np.ndarray:
    codes = np.frombuffer(f" {text.lower()} ".encode("utf-32-le", "replace"), np.uint32)
    trigrams = np.stack([codes[i : len(codes) - 2 + i] for i in range(3)], 1) if text else np.empty((0, 3), np.uint32)
    hashes = (trigrams * HASH_FACTORS).sum(1, dtype=np.uint32) >> np.uint32(32 - NUM_HASHES.bit_length() + 1)
    counts = np.bincount(hashes.astype(np.int64), minlength=NUM_HASHES).astype(np.float32)
    return counts / max(1.0, float(np.linalg.norm(counts)))
