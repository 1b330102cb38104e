"""Readers of untrusted files: regular files only, text with a limited structure, and a memory budget.

A small file can request any amount of memory: by compression, by nested references to the same list, or by a header
with a large shape. A reader counts every allocation before it is made, and stops before it exceeds the budget.
"""

import json
import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import yaml

MAX_MEMORY_SHARE = 0.5
"""Max fraction of the memory of the machine for one file."""
MAX_EXPANSION = 200
"""Max ratio of memory to file size."""
MIN_BUDGET_BYTES = 2**28
"""Memory that is allowed for any file, regardless of its size."""
TEXT_BYTES = 64
"""Max bytes of memory per byte of JSON, YAML or CSV."""
MAX_YAML_BYTES = 2**17
"""PyYAML needs seconds to parse more; a config has about 2,000 bytes."""
MAX_YAML_DEPTH = 20
MAX_YAML_NUMBER = 2**63
"""Python cannot print integers of several thousand digits."""

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
MALFORMED_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions raised when a parsed file has values of the wrong type, shape or range."""


class BudgetError(ValueError):
    """A file would take more memory than its budget."""


@cache
def get_machine_memory() -> int:
    """Return the memory of the machine, or the limit of the cgroup or address space if it is smaller."""
    limits = []
    if hasattr(os, "sysconf"):
        import resource

        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
            limits.append(limit)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such group, or no limit ("max")
            limits.append(int((Path("/sys/fs/cgroup") / name).read_text()))
    return min(limits, default=2**33)  # an assumption, where the system reports nothing


def get_memory_limit() -> int:
    """Return the max number of bytes for one file on this machine."""
    return int(MAX_MEMORY_SHARE * get_machine_memory())


class Budget:
    """Counts the memory used to read one file of `size` bytes."""

    def __init__(self, name: object, size: int) -> None:
        self.name, self.size = name, size
        self.bytes = min(get_memory_limit(), max(MIN_BUDGET_BYTES, MAX_EXPANSION * size))
        self.left = self.bytes

    def take(self, count: int) -> None:
        """Count bytes before they are allocated; raise a BudgetError if the file would exceed its budget."""
        self.left -= count
        if self.left < 0:
            raise BudgetError(
                f"{self.name}, of {self.size:,} bytes, would take more than {self.bytes:,} bytes of memory (at most "
                f"{MAX_MEMORY_SHARE:.0%} of the machine, and {MAX_EXPANSION} times the file size): if you trust the "
                "file, split it and save it without compression"
            )


class ParseError(ValueError):
    """A text has the wrong syntax, or is too large or too deep."""


def check_regular(path: Path) -> int:
    """Return the size of a regular file; raise an OSError for anything else, which may block forever when opened."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is {_KINDS.get(stat.S_IFMT(status.st_mode), 'a device')}, not a regular file")
    return status.st_size


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading after `check_regular`."""
    check_regular(path)
    return path.open("rb")


def read_text(path: Path, errors: str = "strict") -> str:
    """Read a regular file; raise a ValueError if it is not UTF-8 or its parsed content would not fit into memory."""
    size = check_regular(path)
    Budget(path, size).take(TEXT_BYTES * size)
    return path.read_text(encoding="utf-8", errors=errors)


def parse_json(text: str) -> Any:
    """Parse a JSON text; raise a ParseError if it is not JSON or nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"it is not JSON: {error}") from error


def parse_yaml(text: str) -> dict[str, Any]:
    """Parse a YAML mapping; raise a ParseError if it is not one, too large, too deep, or has an alias (`*name`)."""
    if len(text) > MAX_YAML_BYTES:
        raise ParseError(f"it has {len(text):,} characters, the maximum is {MAX_YAML_BYTES:,}")
    try:
        content = yaml.load(text, _FlatLoader)  # noqa: S506 (a subclass of the safe loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: dates such as 2001-99-99
        raise ParseError(f"it is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ParseError(f"it must have lines like `views: 4`, got {type(content).__name__}")
    return content


class _FlatLoader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ParseError(f"it has an alias (*{self.peek_event().anchor}): write the value again")
        self.depth += 1
        if self.depth > MAX_YAML_DEPTH:
            raise ParseError(f"it is nested more than {MAX_YAML_DEPTH} deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_number(self, node: yaml.ScalarNode) -> int:
        value = self.construct_yaml_int(node)
        if abs(value) > MAX_YAML_NUMBER:
            raise ParseError(f"it has an integer of {value.bit_length()} bits")
        return value


_FlatLoader.add_constructor("tag:yaml.org,2002:int", _FlatLoader.construct_number)
