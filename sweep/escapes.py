"""Text from outside, such as names of files, columns and values of tables, as it may be shown: nothing in it can move
the cursor, colour a terminal, turn the reading direction or stop a program that prints it.

What is no character to be seen is written as in Python: "\\x1b", "\\n", and "\\udce9" for a byte that is not
UTF-8 in the name of a file.
"""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from typing import Any

_PLAIN = re.compile(r"[ -~]*")


def one_line(value: Any) -> str:
    """A name or a value in one line.

    >>> one_line("caf\\udce9 \\x1b[31m")
    'caf\\\\udce9 \\\\x1b[31m'
    """
    text = str(value)
    if _PLAIN.fullmatch(text) or text.isprintable():
        return text
    return "".join(char if _is_seen(char) else repr(char)[1:-1] for char in text)


def lines(text: Any) -> str:
    """`one_line` for a text of several lines, which stay.

    >>> lines("one\\ntwo\\r")
    'one\\ntwo\\\\r'
    """
    return "\n".join(map(one_line, str(text).split("\n")))


def shell_word(word: str) -> str:
    """A word as a shell reads it; in $'' where it holds what cannot be shown.

    >>> print(shell_word("my sweep.toml"), shell_word("tab\\t"))
    'my sweep.toml' $'tab\\x09'
    """
    if one_line(word) == word:
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{''.join(chr(code) if 32 <= code < 127 else f'{chr(92)}x{code:02x}' for code in os.fsencode(escaped))}'"


def shell_path(path: str) -> str:
    """A path as a word that no command takes for an option.

    >>> print(shell_path("-x.toml"), shell_path("a b"))
    ./-x.toml 'a b'
    """
    return shell_word(f"./{path}" if path.startswith("-") else path)


def in_json(text: str) -> str:
    """JSON whose strings hold no character that `one_line` would not show: the same value, in JSON's own escapes.

    >>> in_json('{"name": "caf\\udce9"}')
    '{"name": "caf\\\\udce9"}'
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(char if char == "\n" or _is_seen(char) else _json_escape(char) for char in text)


def utf8(text: str) -> str:
    """A text that can be encoded: bytes of a name that were not UTF-8 are escaped.

    >>> utf8("caf\\udce9")
    'caf\\\\udce9'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_seen(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"  # spaces of other scripts


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
