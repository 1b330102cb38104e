r"""Names of files, classes and modalities are a stranger's: how they are shown, and how they become text.

Bytes of a file's name that are not UTF-8 are lone surrogates in Python (PEP 383). YAML and JSON keep them as `\udcff`
and read them back. Everywhere else they are written as `\xff`.
"""

from __future__ import annotations

import re

_SURROGATES = "\ud800-\udfff"
_UNPRINTABLE = re.compile(f"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069{_SURROGATES}]")
"""C0 and C1 control characters (a terminal obeys them), marks that change the direction or the line, surrogates."""


def escape_control_characters(text: object) -> str:
    r"""One line of text that a terminal, a log or a page can show: control characters are written as escapes.

    Examples:
        >>> print(escape_control_characters("red\x1b[31m, two\nlines, \u202eleft, \udcff"))
        red\x1b[31m, two\nlines, \u202eleft, \xff
    """
    return _UNPRINTABLE.sub(_escape, str(text))


def escape_surrogates(text: str) -> str:
    r"""Text that can be encoded as UTF-8: bytes of a name that are not UTF-8 are written as escapes.

    Examples:
        >>> print(escape_surrogates("caf\udce9"))
        caf\xe9
    """
    return re.sub(f"[{_SURROGATES}]", _escape, text)


def encode_file_name(name: str) -> str:
    r"""The name as text that no other name has: what is not UTF-8 becomes `\xff`, and a backslash becomes two.

    Examples:
        >>> print(encode_file_name("caf\udce9.png"), encode_file_name(r"caf\xe9.png"))
        caf\xe9.png caf\\xe9.png
    """
    return escape_surrogates(name.replace("\\", "\\\\"))


def decode_file_name(text: str) -> str:
    r"""The name that `encode_file_name` made this text of.

    Examples:
        >>> decode_file_name(encode_file_name("a\\b\udce9")) == "a\\b\udce9"
        True
    """
    return re.sub(r"\\(?:\\|x([0-9a-f]{2}))", lambda match: chr(0xDC00 + int(match[1], 16)) if match[1] else "\\", text)


def describe_type(value: object) -> str:
    """What a value of an unexpected type is, for a message.

    Examples:
        >>> import pathlib
        >>> describe_type(3), describe_type(pathlib.PurePosixPath("a"))
        ('an int', 'a pathlib.PurePosixPath')
    """
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == 0x0A:
        return "\\n"
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
