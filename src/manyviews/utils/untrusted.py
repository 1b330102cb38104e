"""Readers of untrusted files: regular files only, and text with a limited structure."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import IO, Any

import yaml

from manyviews.utils.budget import Budget

TEXT_BYTES = 64
"""Max bytes of memory per byte of JSON, YAML or CSV."""
MAX_YAML_BYTES = 2**17
"""PyYAML needs seconds to parse more; a config has about 2,000 bytes."""
MAX_YAML_DEPTH = 20
MAX_YAML_NUMBER = 2**63
"""Python cannot print integers of several thousand digits."""

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions raised when a parsed file has values of the wrong type, shape or range."""


class ParseError(ValueError):
    """A text has the wrong syntax, or is too large or too deep."""


def check_regular(path: Path) -> int:
    """Return the size of a regular file; opening anything else may block forever.

    Raises:
        OSError: the file does not exist, or it is a folder, a pipe, a socket or a device.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "special")
        raise OSError(f"{path} is {kind}, not a regular file")
    return status.st_size


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading after `check_regular`."""
    check_regular(path)
    return path.open("rb")


def read_text(path: Path, errors: str = "strict") -> str:
    """Read the text of a regular file whose parsed content fits into memory.

    Raises:
        OSError: the file does not exist or is not regular.
        ValueError: it is not UTF-8, or too large.
    """
    size = check_regular(path)
    Budget(path, size).take(TEXT_BYTES * size)
    return path.read_text(encoding="utf-8", errors=errors)


def parse_json(text: str) -> Any:
    """Parse a JSON text.

    Raises:
        ParseError: it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"it is not JSON: {error}") from error


def parse_yaml(text: str) -> dict[str, Any]:
    """Parse a YAML mapping.

    Raises:
        ParseError: the text is not a YAML mapping, or is too large, too deep, or has an alias (`*name`).

    Examples:
        >>> parse_yaml("views: 4")
        {'views': 4}
    """
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
