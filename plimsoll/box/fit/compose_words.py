r"""How compose splits a command that is one text: not as a shell does (it uses a library, go-shellwords). Pure.

A backslash keeps the character behind it, a newline as well, inside of double quotes too; `;`, `&`, `|`, `<` and `>`
outside of quotes end the command.
"""

_BLANKS = " \t\r\n"
_ENDS = ";&|<>"
_ESCAPED = {"t": "\t", "n": "\n"}


def split(text: str) -> list[str]:
    """Return the words of a text; raises ValueError for one that compose refuses."""
    return _Splitter().split(text)


def odd_words(words: list[str]) -> list[str]:
    """Return the words that an engine refuses: a flag with a newline or a blank before it, and blanks alone."""
    return [word for word in words if word[:1] in _BLANKS and word.strip()[:2] in ("", "--") and word]


class _Splitter:
    """Reads a text character by character; `quote` is what closes the part it is in, empty outside of all."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.word = ""
        self.begun = False
        self.quote = ""
        self.escaped = False

    def split(self, text: str) -> list[str]:
        """Return the words; raises ValueError."""
        for character in text:
            if self._ends(character):
                break
            self._take(character)
        if self.escaped or self.quote:
            raise ValueError("a quote, a $( or a backslash is not closed: compose refuses it")
        self._close()
        return self.words

    def _ends(self, character: str) -> bool:
        if self.escaped or self.quote or character not in _ENDS:
            return False
        if character == ">" and self.word.isdigit():
            # the number of a descriptor is part of the redirection
            self.word, self.begun = "", False
        return True

    def _take(self, character: str) -> None:
        if self.escaped:
            self.escaped = False
            raw = self.quote in ("`", ")")
            self._add(f"\\{character}" if raw else _ESCAPED.get(character, character))
        elif character == "\\" and self.quote != "'":
            self.escaped = True
        elif character in _BLANKS and not self.quote:
            self._close()
        else:
            self._take_plain(character)

    def _take_plain(self, character: str) -> None:
        if self.quote:
            if character != self.quote:
                self._add(character)
                return
            self.quote = ""
            self._add(character if character in "`)" else "")
        elif character in "\"'`":
            self.quote = character
            self._add("`") if character == "`" else None
        elif character == "(" and self.word.endswith("$"):
            self.quote = ")"
            self._add("(")
        elif character in "()":
            raise ValueError("a bracket outside of quotes: compose refuses it")
        else:
            self._add(character)

    def _add(self, text: str) -> None:
        self.word += text
        self.begun = True

    def _close(self) -> None:
        if self.begun:
            self.words.append(self.word)
        self.word, self.begun = "", False
