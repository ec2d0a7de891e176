"""Programs that run other programs: `bash -c`, `eval`, `sbatch --wrap`, `env`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from advisor.reading.words import Piece, Word

_SHELLS: Final = ("bash", "sh", "zsh", "dash")
_COMMAND_FLAG: Final = re.compile(r"-[a-z]*c[a-z]*")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_EXPORT: Final = "--export="


def nested_scripts(words: Sequence[Word]) -> Iterator[Word]:
    """Texts among the words of a command that a shell will read."""
    texts = [word.text for word in words]
    if texts[:1] == ["eval"]:
        yield _together(words[1:])
        return
    for number, text in enumerate(texts):
        shell = text.rpartition("/")[2] in _SHELLS
        flag = number + 1
        while shell and flag + 1 < len(texts) and texts[flag].startswith("-"):
            if _COMMAND_FLAG.fullmatch(texts[flag]):
                yield words[flag + 1]
                break
            flag += 1
        if text.startswith("--wrap="):
            yield words[number].part(len("--wrap="))
        elif text == "--wrap" and number + 1 < len(words):
            yield words[number + 1]


def reads_script(texts: Sequence[str]) -> bool:
    """Whether a command reads a script from its standard input, as `srun bash <<EOF`."""
    if not texts:
        return False
    plain = [text for text in texts if text != "-s"]
    return plain[-1].rpartition("/")[2] in _SHELLS or plain[0] in ("sbatch", "ssh")


def prefixed(
    words: Sequence[Word], environment: Mapping[str, Word]
) -> tuple[list[Word], dict[str, Word]]:
    """Words and environment of a command after `env X=1`, and of one after `srun --export=`."""
    found, rest = dict(environment), list(words)
    if rest[0].text == "env":
        rest.pop(0)
        while rest and _ASSIGNMENT.match(rest[0].text):
            _put(found, rest.pop(0))
    for word in rest:
        if word.text.startswith(_EXPORT):
            offset = len(_EXPORT)
            for part in word.text[offset:].split(","):
                if _ASSIGNMENT.match(part):
                    _put(found, word.part(offset, offset + len(part)))
                offset += len(part) + 1
    return rest, found


def _put(environment: dict[str, Word], assignment: Word) -> None:
    name = assignment.text.partition("=")[0]
    environment[name] = assignment.part(len(name) + 1)


def _together(words: Sequence[Word]) -> Word:
    """`eval` puts a space between its words."""
    pieces: list[Piece] = []
    for word in words:
        if pieces:
            pieces.append(Piece(text=" ", place=word.place))
        pieces += word.pieces
    return Word(tuple(pieces) or words[0].pieces if words else ())
