"""Text without its secrets.

Covers: passwords and keys in addresses (before the host, in the query) and in `name=value` settings of a DSN.
Does not cover: keeping secrets (they stay in the process or its environment).

A password may hold any sign. In an address it ends at the last @ before the query; in a DSN at a space or its quote.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"
_NAMES = (
    r"(?:ssl)?(?:password|passwd|pwd|passphrase)|token|secret|api[_-]?key|access[_-]?key|secret[_-]?key|signature|"
    r"x-amz-signature|x-amz-security-token|sig|credential"
)
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^\s'\"<>]*)")
_SETTING = re.compile(rf"(?i)(?<![A-Za-z])((?:{_NAMES})\s*=\s*)('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\s&;,'\"]+)")
_WHOLE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(\S*)")
_OPTION = re.compile(rf"(?i)((?:^|[?&])(?:{_NAMES})=)[^&]*")
_QUOTED = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>:@/]*:)(?!\d+(?:[^\w@]|$))([^\s@]*['\"<> ][^@\n]{0,100}?)(?=@[\w\[])"
)
"""A password in which a quote or a space stands, where the text goes on with @ and a host; a port is none."""
_SUSPECT = re.compile(r"(?i)://|pass|pwd|token|secret|key|sig|credential")


def redact(text: str) -> str:
    """The text with every password, token and key in it hidden. Nothing else changes; twice is as once.

    >>> redact("postgresql://ann:p/w@1@db/x?sslpassword=no")
    'postgresql://ann:***@db/x?sslpassword=***'
    >>> redact("host=db user=ann password='a b'")
    'host=db user=ann password=***'
    """
    if not _SUSPECT.search(text):
        return text
    if whole := _WHOLE.fullmatch(text):  # nothing but an address: quotes in it are its own
        return _OPTION.sub(rf"\1{HIDDEN}", _without_user_secret(whole))
    text = _QUOTED.sub(rf"\1{HIDDEN}", text)
    return _SETTING.sub(rf"\1{HIDDEN}", _ADDRESS.sub(_without_user_secret, text))


def without_secrets(text: str) -> str:
    """The text with its secrets left out, so that it is still an address: a driver looks for them elsewhere.

    >>> without_secrets("postgresql://ann:pw@db/x?password=pw&sslmode=require")
    'postgresql://ann@db/x?sslmode=require'
    """
    shown = redact(text)
    if shown == text:
        return text
    shown = shown.replace(f":{HIDDEN}@", "@")
    shown = re.sub(rf"(?i)(?<=[?&])(?:{_NAMES})={re.escape(HIDDEN)}&?", "", shown)
    shown = re.sub(rf"(?i)\s*(?<![A-Za-z])(?:{_NAMES})\s*=\s*{re.escape(HIDDEN)}", "", shown)
    return shown.rstrip("?& ").lstrip()


def redacted(value: Any, depth: int = 8) -> Any:
    """The same for all text in a tree of dicts and lists."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict) and depth:
        return {key: _named(key, item, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and depth:
        return [redacted(item, depth - 1) for item in value]
    return value


def _named(key: Any, item: Any, depth: int) -> Any:
    secret = isinstance(key, str) and isinstance(item, str) and re.fullmatch(rf"(?i){_NAMES}", key)
    return HIDDEN if secret and item else redacted(item, depth - 1)


def _without_user_secret(found: re.Match[str]) -> str:
    scheme, rest = found[1], found[2]
    # The @ of a query's value ends no password, unless the ? before it is the password's own sign.
    head, mark, query = rest.partition("?")
    if "@" not in head and "@" in query and ":" in head:
        head, mark, query = rest, "", ""
    user, at, place = head.rpartition("@")
    name, colon, _ = user.partition(":")
    secret = at and colon and "/" not in name  # a path may hold : and @ too
    return f"{scheme}{name}:{HIDDEN}@{place}{mark}{query}" if secret else f"{scheme}{rest}"
