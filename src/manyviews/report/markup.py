"""HTML and SVG elements; content is escaped unless it is an element itself."""

import json
import re
from typing import Any

from markupsafe import Markup, escape


def make_element(name: str, *children: object, **attributes: object) -> Markup:
    """Make an HTML or SVG element; attributes that are None are omitted, floats are rounded, and `_` becomes `-`.

    Examples:
        >>> make_element("text", "a < b", class_="label", x=3)
        Markup('<text class="label" x="3">a &lt; b</text>')
    """
    attrs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(format_coordinate(value) if type(value) is float else value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{attrs}>{''.join(escape(child) for child in children)}</{name}>")  # noqa: S704 (everything is escaped)


def format_inline_code(text: str) -> Markup:
    """Escape a text; text between backticks becomes code.

    Examples:
        >>> format_inline_code("try `a < b`")
        Markup('try <code>a &lt; b</code>')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 (escaped first)


def dump_script_json(value: Any) -> Markup:
    r"""Dump JSON for a script element: no string in it can end the element.

    Examples:
        >>> print(dump_script_json("</script>"))
        "\u003c/script\u003e"
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704 (escaped above)


def format_coordinate(value: float) -> str:
    """Format a coordinate with at most one decimal.

    Examples:
        >>> format_coordinate(12.04), format_coordinate(3.26)
        ('12', '3.3')
    """
    return f"{value:.1f}".removesuffix(".0")
