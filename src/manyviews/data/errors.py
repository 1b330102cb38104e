"""Errors and warnings about data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from manyviews.utils import BudgetError


class DatasetError(ValueError):
    """Data is missing or invalid; the message has the file and what to do."""


class CorruptFileError(DatasetError):
    """A file is truncated or corrupt, or not of the kind that it should be; other files of the data may be fine."""


class DatasetWarning(UserWarning):
    """Data was skipped or changed when it was loaded; see `DatasetDict.warnings`."""


MAX_WARNINGS = 10
"""Maximum number of a dataset's warnings that are raised as `DatasetWarning`."""


def warn_each(messages: Sequence[str], name: str) -> None:
    """Raise the first of a dataset's warnings as `DatasetWarning`, for the caller of the caller."""
    for message in messages[:MAX_WARNINGS]:
        warnings.warn(message, DatasetWarning, stacklevel=3)
    if (more := len(messages) - MAX_WARNINGS) > 0:
        warnings.warn(f"{name}: {more} more warnings, shown by `manyviews inspect`", DatasetWarning, stacklevel=3)


@contextmanager
def translate_errors(message: str) -> Iterator[None]:
    """Convert any error of a reader to a `DatasetError` that starts with `message`: a corrupt file can cause any error.

    Errors of this package and of memory budgets keep their messages.
    """
    try:
        yield
    except (DatasetError, Warning):
        raise
    except BudgetError as error:
        raise DatasetError(str(error)) from error
    except Exception as error:
        reason = repr(error) if isinstance(error, LookupError) or not str(error) else str(error)
        raise DatasetError(f"{message}: {reason[:1000]}") from error
