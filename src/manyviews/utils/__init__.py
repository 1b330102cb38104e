"""Low-level helpers, which do not import any other package of manyviews.

Modules are imported lazily, when one of their names is first used, so that the command line starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyviews.utils.budget import Budget, BudgetError, memory_share
    from manyviews.utils.devices import Device, choose_threads, limit_threads, resolve_device
    from manyviews.utils.io import (
        DISK_FULL,
        atomic_path,
        check_writable,
        exclusive_lock,
        fsync_directory,
        take_turns,
        write_atomic,
    )
    from manyviews.utils.processes import PARENT_PID, exit_with_parent
    from manyviews.utils.progress import LOG_EVERY_SECONDS, format_duration, hide_progress, track
    from manyviews.utils.rng import EVAL_EPOCH, draw_permutation, draw_uniform, hash_key
    from manyviews.utils.schedules import warmup_cosine_lr
    from manyviews.utils.stderr import STDERR, print_stderr
    from manyviews.utils.text import (
        decode_file_name,
        describe_type,
        encode_file_name,
        escape_control_characters,
        escape_surrogates,
        suggest,
    )
    from manyviews.utils.untrusted import MALFORMED, check_regular, open_regular, parse_json, parse_yaml, read_text
    from manyviews.utils.validation import check_finite, check_labels

_MODULES = {
    "budget": (
        "Budget",
        "BudgetError",
        "memory_share",
    ),
    "devices": (
        "Device",
        "choose_threads",
        "limit_threads",
        "resolve_device",
    ),
    "io": (
        "DISK_FULL",
        "atomic_path",
        "check_writable",
        "exclusive_lock",
        "fsync_directory",
        "take_turns",
        "write_atomic",
    ),
    "processes": (
        "PARENT_PID",
        "exit_with_parent",
    ),
    "progress": (
        "LOG_EVERY_SECONDS",
        "format_duration",
        "hide_progress",
        "track",
    ),
    "rng": (
        "EVAL_EPOCH",
        "draw_permutation",
        "draw_uniform",
        "hash_key",
    ),
    "schedules": ("warmup_cosine_lr",),
    "stderr": (
        "STDERR",
        "print_stderr",
    ),
    "text": (
        "decode_file_name",
        "describe_type",
        "encode_file_name",
        "escape_control_characters",
        "escape_surrogates",
        "suggest",
    ),
    "untrusted": (
        "MALFORMED",
        "check_regular",
        "open_regular",
        "parse_json",
        "parse_yaml",
        "read_text",
    ),
    "validation": (
        "check_finite",
        "check_labels",
    ),
}
"""Public names of each module."""

__all__ = [
    "DISK_FULL",
    "EVAL_EPOCH",
    "LOG_EVERY_SECONDS",
    "MALFORMED",
    "PARENT_PID",
    "STDERR",
    "Budget",
    "BudgetError",
    "Device",
    "atomic_path",
    "check_finite",
    "check_labels",
    "check_regular",
    "check_writable",
    "choose_threads",
    "decode_file_name",
    "describe_type",
    "draw_permutation",
    "draw_uniform",
    "encode_file_name",
    "escape_control_characters",
    "escape_surrogates",
    "exclusive_lock",
    "exit_with_parent",
    "format_duration",
    "fsync_directory",
    "hash_key",
    "hide_progress",
    "limit_threads",
    "memory_share",
    "open_regular",
    "parse_json",
    "parse_yaml",
    "print_stderr",
    "read_text",
    "resolve_device",
    "suggest",
    "take_turns",
    "track",
    "warmup_cosine_lr",
    "write_atomic",
]


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"manyviews.utils.{module}"), name)
    raise AttributeError(f"module 'manyviews.utils' has no attribute {name!r}")
