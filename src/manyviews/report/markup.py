"""Elements of a page: whatever is put into one is escaped, unless it is an element itself."""

from __future__ import annotations

import json
import re
from typing import Any

from markupsafe import Markup, escape


def element(name: str, *inside: object, **attributes: object) -> Markup:
    """An element of HTML or SVG; attributes that are None are left out, and `_` stands for `-`.

    Examples:
        >>> element("text", "a < b", class_="label", x=3)
        Markup('<text class="label" x="3">a &lt; b</text>')
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{said}>{''.join(escape(part) for part in inside)}</{name}>")  # noqa: S704 (all is escaped)


def prose(text: str) -> Markup:
    """A sentence, escaped; what stands between backquotes is code.

    Examples:
        >>> prose("try `a < b`")
        Markup('try <code>a &lt; b</code>')
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 (escaped first)


def embedded_json(value: Any) -> Markup:
    r"""JSON for a script element of a page: no text in it can end the element.

    Examples:
        >>> print(embedded_json("</script>"))
        "\u003c/script\u003e"
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704 (escaped above)


def number(value: float) -> str:
    """A coordinate, no longer than it need be.

    Examples:
        >>> number(12.04), number(3.26)
        ('12', '3.3')
    """
    return f"{value:.1f}".removesuffix(".0")
