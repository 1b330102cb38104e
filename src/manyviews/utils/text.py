r"""Display and encoding of untrusted names of files, classes and modalities.

Bytes of a file name that are not UTF-8 are lone surrogates in Python (PEP 383). YAML and JSON keep them as `\udcff`
and read them back. Everywhere else they are written as `\xff`.
"""

import difflib
import re
import statistics
from collections.abc import Collection, Sequence


def suggest(name: str, valid: Collection[str]) -> str:
    """Return the end of an error message about an unknown name: close matches, or all valid names.

    Examples:
        >>> suggest("photo", ["digits", "photos"])
        ': did you mean photos?'
    """
    matches = difflib.get_close_matches(str(name), list(valid), n=3, cutoff=0.5)
    return f": did you mean {' or '.join(matches)}?" if matches else f". There are {', '.join(sorted(valid))}"


def format_mean_std(values: Sequence[float], digits: int = 1, percent: bool = False) -> str:
    """Format the mean and the sample standard deviation of values; a single value has no deviation.

    Examples:
        >>> format_mean_std([74.8, 76.0]), format_mean_std([0.748, 0.76], percent=True), format_mean_std([2.0])
        ('75.4 ± 0.8', '75.4% ± 0.8', '2.0')
    """
    scale = 100 if percent else 1
    mean = f"{scale * statistics.fmean(values):.{digits}f}{'%' if percent else ''}"
    return mean if len(values) < 2 else f"{mean} ± {scale * statistics.stdev(values):.{digits}f}"


_SURROGATES = "\ud800-\udfff"
_UNPRINTABLE = re.compile(f"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069{_SURROGATES}]")
"""C0 and C1 control characters (a terminal executes them), direction and line marks, surrogates."""


def escape_control_characters(text: object) -> str:
    r"""Escape control characters, so that a terminal, a log or a page can show the text on one line.

    Examples:
        >>> print(escape_control_characters("red\x1b[31m, two\nlines, \u202eleft, \udcff"))
        red\x1b[31m, two\nlines, \u202eleft, \xff
    """
    return _UNPRINTABLE.sub(_escape, str(text))


def escape_surrogates(text: str) -> str:
    r"""Escape lone surrogates (bytes of a name that are not UTF-8), so that the text can be encoded as UTF-8.

    Examples:
        >>> print(escape_surrogates("caf\udce9"))
        caf\xe9
    """
    return re.sub(f"[{_SURROGATES}]", _escape, text)


def encode_file_name(name: str) -> str:
    r"""Encode a name as unique text: bytes that are not UTF-8 become `\xff`, and backslashes are doubled.

    Examples:
        >>> print(encode_file_name("caf\udce9.png"), encode_file_name(r"caf\xe9.png"))
        caf\xe9.png caf\\xe9.png
    """
    return escape_surrogates(name.replace("\\", "\\\\"))


def decode_file_name(text: str) -> str:
    r"""Invert `encode_file_name`.

    Examples:
        >>> decode_file_name(encode_file_name("a\\b\udce9")) == "a\\b\udce9"
        True
    """
    return re.sub(r"\\(?:\\|x([0-9a-f]{2}))", lambda match: chr(0xDC00 + int(match[1], 16)) if match[1] else "\\", text)


def describe_type(value: object) -> str:
    """Return the type of a value with its article, for an error message.

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
