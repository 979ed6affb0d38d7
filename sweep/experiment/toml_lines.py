"""Where the keys of a TOML text are: tomllib gives values without positions, and an error message needs the line."""

from __future__ import annotations

import re

_DEEPEST = 3  # parts of a path that anybody asks for: table, key, key of an inline table
_NESTED = 100  # brackets in brackets, and parts of a dotted key: far beyond any experiment
# A key of very many parts takes time and memory in the square of their number. First a quick look for a line with so
# many dots, then a scan that leaves strings, comments and numbers out.
_MANY_DOTS = re.compile(rf"(?:\.[^.\n]*+){{{_NESTED}}}")
_OF_A_KEY = re.compile(r"""["'#\n\[\]{}=,.]""")
_LONG_NUMBER = re.compile(r"[0-9_]{4300,}")  # digits: Python reads no decimal integer of more
_WORD = re.compile(r"[\w-]+")
_OF_A_VALUE = re.compile(r"""["'#\n\[\]{}]""")  # what ends a value, nests it, or hides such characters


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Line number (from 1) of every table and key of a valid TOML text, by its full path, such as ("slo", "ttft_ms").

    Keys inside inline tables are not listed: they are reported at the line of the key that holds the table.
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    at, line, size = 0, 1, len(text)
    while at < size:
        character = text[at]
        if character == "\n":
            at, line = at + 1, line + 1
        elif character in " \t\r":
            at += 1
        elif character == "#":
            at = _line_end(text, at)
        elif character == "[":
            table, at = _dotted_key(text, at + (2 if text.startswith("[[", at) else 1), "]")
            lines.setdefault(table[:_DEEPEST], line)
            at = _line_end(text, at)
        else:
            key, at = _dotted_key(text, at, "=")
            for depth in range(1, min(len(key), _DEEPEST) + 1):
                lines.setdefault((table + key[:depth])[:_DEEPEST], line)
            start, at = at, _value_end(text, at)
            line += text.count("\n", start, at)
    return lines


def line_of(lines: dict[tuple[str, ...], int], path: tuple[str, ...]) -> int | None:
    """The line of `path`, or of the nearest table around it; None when not even its first table is in the text."""
    for depth in range(len(path), 0, -1):
        if path[:depth] in lines:
            return lines[path[:depth]]
    return None


def long_key_line(text: str) -> int | None:
    """The line of a key of so many parts that it is not read; None without one."""
    if _MANY_DOTS.search(text) is None:
        return None
    dots, at = 0, 0
    while match := _OF_A_KEY.search(text, at):
        at, character = match.start(), match[0]
        if character in "\"'":
            at = _string_end(text, at)
        elif character == "#":
            at = _line_end(text, at)
        else:
            dots = dots + 1 if character == "." else 0
            if dots >= _NESTED:
                return text.count("\n", 0, at) + 1
            at += 1
    return None


def deep_nesting_line(text: str) -> int | None:
    """The line where the brackets of a TOML text are nested too deeply to be read; None where they are not."""
    depth, at = 0, 0
    while match := _OF_A_VALUE.search(text, at):
        at, character = match.start(), match[0]
        if character in "\"'":
            at = _string_end(text, at)
        elif character == "#":
            at = _line_end(text, at)
        else:
            depth = max(0, depth + (character in "[{") - (character in "]}"))
            if depth > _NESTED:
                return text.count("\n", 0, at) + 1
            at += 1
    return None


def long_number_line(text: str) -> int | None:
    """The line of a number of too many digits to be read; None without one."""
    found = _LONG_NUMBER.search(text)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def _dotted_key(text: str, at: int, end: str) -> tuple[tuple[str, ...], int]:
    """Read `a.'b c'.d` up to the character `end`; return the parts and the position behind `end`."""
    parts: list[str] = []
    bare = ""
    while at < len(text) and text[at] != end:
        character = text[at]
        if character in "\"'":
            close = _string_end(text, at)
            bare, at = text[at + 1 : close - 1], close
        elif character == ".":
            parts.append(bare)
            bare, at = "", at + 1
        elif character in " \t":
            at += 1
        else:
            word = _WORD.match(text, at)
            bare, at = (word[0], word.end()) if word else (bare + character, at + 1)
    return (*parts, bare), at + 1


def _value_end(text: str, at: int) -> int:
    """The end of the value at `at`: the next line break outside of brackets and strings, or the end of the text."""
    depth = 0
    while match := _OF_A_VALUE.search(text, at):
        at, character = match.start(), match[0]
        if character == "\n" and depth == 0:
            return at
        if character in "\"'":
            at = _string_end(text, at)
        elif character == "#":
            at = _line_end(text, at)
        else:
            depth += (character in "[{") - (character in "]}")
            at += 1
    return len(text)


def _string_end(text: str, at: int) -> int:
    """The position behind the string that begins at `at`, of any of TOML's four kinds."""
    quote = text[at]
    mark = quote * 3 if text.startswith(quote * 3, at) else quote
    at += len(mark)
    while at < len(text):
        if text[at] == "\\" and quote == '"':
            at += 2
        elif text.startswith(mark, at):
            at += len(mark)
            while len(mark) == 3 and at < len(text) and text[at] == quote:  # up to two quotes may end the text itself
                at += 1
            return at
        else:
            at += 1
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
