"""`Tokenizer`: texts -> token ids, as a pretrained text encoder takes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from manyviews.data.errors import DatasetError


class Tokenizer:
    """Maps texts to token ids by the text of a tokenizer.json file, the format of the package tokenizers.

    Args:
        text: content of a tokenizer.json file.
        max_tokens: maximum number of tokens of a text, special tokens included; longer texts are cut.
        pad_id: id of the padding.

    Examples:
        >>> from tokenizers import Tokenizer as Words
        >>> from tokenizers.models import WordLevel
        >>> words = Words(WordLevel({"a": 1, "cat": 2, "[UNK]": 3}, "[UNK]"))
        >>> words.pre_tokenizer = __import__("tokenizers").pre_tokenizers.Whitespace()
        >>> Tokenizer(words.to_str(), max_tokens=8).encode(["a cat", "cat"])
        (tensor([[1, 2],
                [2, 0]]), tensor([2, 1]))
    """

    def __init__(self, text: str, *, max_tokens: int, pad_id: int = 0) -> None:
        self.text, self.max_tokens, self.pad_id = text, max_tokens, pad_id
        self._backend = _parse_tokenizer(text, max_tokens)

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return token ids (B, T), padded to the longest text, and the number of tokens (B,) of each text."""
        rows = [torch.tensor(encoding.ids) for encoding in self._backend.encode_batch(list(texts))]
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        if empty := (lengths == 0).nonzero().flatten().tolist():
            raise DatasetError(f"the tokenizer makes no tokens of the text {texts[empty[0]]!r}: leave it empty")
        if not rows:
            return torch.zeros(0, 1, dtype=torch.long), lengths
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad_id), lengths

    def decode(self, ids: Tensor) -> str:
        """Return the text of token ids (T,), without special tokens."""
        text: str = self._backend.decode(ids.tolist())
        return text


@lru_cache(maxsize=8)
def _parse_tokenizer(text: str, max_tokens: int) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise DatasetError("the encoder of texts needs a tokenizer: pip install 'manyviews[hf]'") from error
    # Batches are small, and worker processes that are forked later must not find its threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        backend = tokenizers.Tokenizer.from_str(text)
        backend.no_padding()
        backend.enable_truncation(max_tokens)
    except Exception as error:  # tokenizers raises plain Exceptions
        raise DatasetError(f"the tokenizer of the encoder is not a valid tokenizer.json: {error}") from error
    return backend
