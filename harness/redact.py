"""Takes out of text what must not leave the house: secrets, and names of people and machines.

Secrets are known by how they are called (`api_key=…`, `--token …`) and by how they look. What is
taken out leaves a word in its place; hosts and addresses get numbers, so that it can still be told
who was where. No rule finds every secret: docs/bundle.md says what is looked for.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

GONE = "[redacted]"

_NAMES = (
    r"[A-Za-z0-9_-]{0,64}(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|"
    r"private[_-]?key|credentials?|authorization)(?:[_-]?(?:id|key))?"
)
_VALUE = r"([^\s'\",;]{4,})"
_ASSIGNED = re.compile(
    rf"\b({_NAMES})(['\"]?\s*[=:]\s*['\"]?(?:bearer\s+|basic\s+)?){_VALUE}", re.I
)
_OPTION = re.compile(rf"(?<!\S)(--?{_NAMES})(\s+){_VALUE}", re.I)
_NAME_ALONE = re.compile(rf"-{{0,2}}{_NAMES}", re.I)
_NAMED_KEY = re.compile(rf"[\"']-{{0,2}}{_NAMES}[\"']", re.I)
_NUMBER = re.compile(r"[\d.,eE+-]+")
_LOOKS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{16,}"
    r"|\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bAIza[0-9A-Za-z_-]{30,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    re.S,
)
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]{0,20}://)[^/\s:@'\"]+:[^/\s@'\"]+@", re.I)
_SIGNED = re.compile(r"([?&](?:sig|signature|x-amz-signature|x-goog-signature)=)[^&\s'\"]+", re.I)
_ADDRESS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_WORDS_LEFT = frozenset({"none", "null", "true", "false", "auto", GONE})
_SHORTEST_NAME = 4
"""A shorter name of a host or a user says little, and is a part of too many words."""


class Redactor:
    """`home` becomes ~, `user` a word, `hosts` numbers. `counts` says how often what was taken
    out."""

    def __init__(self, *, home: str = "", user: str = "", hosts: Sequence[str] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self._addresses: dict[str, str] = {}
        self._replaced: dict[str, tuple[str, str]] = {}
        """Text -> what stands for it, and what it is."""
        if len(home) > 1:
            self._replaced[home] = ("~", "home")
        if len(user) >= _SHORTEST_NAME and user != "root":
            self._replaced[user] = ("[user]", "user")
        for number, host in enumerate(dict.fromkeys(hosts)):
            if len(host) >= _SHORTEST_NAME and host != "localhost":
                self._replaced[host] = (f"host{number}", "host")
        self._names = None
        if self._replaced:
            longest_first = sorted(self._replaced, key=len, reverse=True)
            either = "|".join(map(re.escape, longest_first))
            self._names = re.compile(rf"(?<![A-Za-z0-9_-])(?:{either})(?![A-Za-z0-9_-])")

    def text(self, text: str) -> str:
        """`text` without what must not leave."""
        text = _LOOKS.sub(lambda _: self._gone("secret"), text)
        text = _IN_URL.sub(lambda found: f"{found[1]}{self._gone('secret')}@", text)
        text = _SIGNED.sub(lambda found: f"{found[1]}{self._gone('secret')}", text)
        text = _OPTION.sub(self._named, _ASSIGNED.sub(self._named, text))
        text = _ADDRESS.sub(self._address, text)
        return text if self._names is None else self._names.sub(self._name, text)

    def json_text(self, text: str) -> str:
        """A JSON value as text; what is none is taken for plain text."""
        if not self._suspect(text):
            return text  # of most lines of a journal: to take them apart would take minutes
        try:
            value = json.loads(text)
        except ValueError:
            return self.text(text)
        return json.dumps(self.value(value), ensure_ascii=False, separators=(",", ":"))

    def value(self, value: Any) -> Any:
        """A value as JSON has it, redacted in all its strings."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self._of_key(key, inner) for key, inner in value.items()}
        if isinstance(value, list):
            return self._list(value)
        return value

    def _suspect(self, text: str) -> bool:
        patterns = (_LOOKS, _IN_URL, _SIGNED, _ASSIGNED, _OPTION, _ADDRESS, _NAMED_KEY)
        found = any(pattern.search(text) for pattern in patterns)
        return found or (self._names is not None and self._names.search(text) is not None)

    def _of_key(self, key: str, value: Any) -> Any:
        secret = isinstance(value, str) and value and value.lower() not in _WORDS_LEFT
        if secret and _NAME_ALONE.fullmatch(key):
            return self._gone("secret")
        return self.value(value)

    def _list(self, values: list[Any]) -> list[Any]:
        """Of a command line, the word after `--api-key` too."""
        found: list[Any] = []
        after_name = False
        for value in values:
            text = isinstance(value, str)
            found.append(self._gone("secret") if after_name and text else self.value(value))
            after_name = bool(text and value.startswith("-") and _NAME_ALONE.fullmatch(value))
        return found

    def _gone(self, what: str) -> str:
        self.counts[what] += 1
        return GONE

    def _named(self, found: re.Match[str]) -> str:
        name, between, value = found.groups()
        counted = "token" in name.lower() and _NUMBER.fullmatch(value)
        if counted or value.lower() in _WORDS_LEFT:
            return found[0]
        return f"{name}{between}{self._gone('secret')}"

    def _address(self, found: re.Match[str]) -> str:
        parts = [int(part) for part in found[0].split(".")]
        if max(parts) > 255 or parts[0] in (0, 127):
            return found[0]
        self.counts["address"] += 1
        number = len(self._addresses)
        return self._addresses.setdefault(found[0], f"[address {number}]")

    def _name(self, found: re.Match[str]) -> str:
        instead, what = self._replaced[found[0]]
        self.counts[what] += 1
        return instead
