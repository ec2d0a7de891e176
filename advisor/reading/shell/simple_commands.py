"""Commands of a shell script: what they set, run, have others run, and write."""

import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from advisor.base.limits import MOST_CONFIG_BYTES
from advisor.reading.shell.expansion import Expander, Source, TooLongError, bounded, check_length
from advisor.reading.shell.script import Record, ShellCommand, WrittenFile
from advisor.reading.shell.state import (
    UNKNOWN,
    State,
    Variable,
    appended,
    positional,
    scalar,
    set_positional,
    shift,
)
from advisor.reading.shell.syntax import TOO_DEEP, assigned_in, first_error, parsed, too_deep
from advisor.reading.words import Piece, Word, split_words

if TYPE_CHECKING:
    from tree_sitter import Node

_DEEPEST: Final = 8
_SILENT: Final = (
    *("echo", "printf", "logger", "mkdir", "cd", "rm", "cp", "mv", "ls", "sleep", "wait"),
    *("shift", "set", "getopts", "read"),
)
"""Programs that nothing is to be said of."""


class Commands:
    """One source's commands, and what they set, on their way through the interpreter."""

    def __init__(self, record: Record, source: Source) -> None:
        self.record = record
        self.source = source

    def note(self, text: str, node: "Node") -> None:
        """Say what cannot be known, at a node."""
        self.record.note(text, self.source.place(node))

    def assign(self, node: "Node", state: State, *, export: bool = False) -> None:
        """`X=value`, `X+=value`, `X=(…)`; of one element of an array nothing is known after."""
        name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None:
            return
        name = self.source.text(name_node).partition("[")[0]
        if name_node.type == "subscript":
            state.set(name, UNKNOWN)
            return
        try:
            variable = self._value(value, state, node)
            if any(child.type == "+=" for child in node.children):
                before = UNKNOWN if state.sourced else None
                variable = appended(state.variables.get(name, before), variable)
                check_length(variable)
        except TooLongError as error:
            self.note(f"{name} {error}", node)
            variable = UNKNOWN
        self.record.spend(variable.values or ())
        if value is not None:
            self.record.uses(self.source.text(value))
        state.set(name, variable, export=export or name in state.exported)
        self.record.assigned(name, variable)

    def _value(self, value: "Node | None", state: State, node: "Node") -> Variable:
        expander = Expander(self.source, state)
        if value is None:
            return scalar([Piece(text="", place=self.source.place(node))])
        if value.type == "array":
            array = Variable(values=tuple(expander.expanded(value.named_children)), array=True)
            check_length(array)
            return array
        return scalar(expander.scalar(value))

    def declare(self, node: "Node", state: State) -> None:
        """`export X=1`, `declare -a X=(…)`, `local X`."""
        keyword = self.source.text(node.children[0])
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assign(child, state, export=keyword == "export")
            elif child.type == "variable_name" and keyword == "export":
                state.exported.add(self.source.text(child))

    def unset(self, node: "Node", state: State) -> None:
        """`unset X`."""
        for child in node.named_children:
            state.variables.pop(self.source.text(child), None)
            state.exported.discard(self.source.text(child))

    @abstractmethod
    def statement(self, node: "Node", states: list[State]) -> list[State]:
        """One statement in all states."""

    @abstractmethod
    def statements(self, nodes: list["Node"], states: list[State]) -> list[State]:
        """Statements one after the other."""

    def text(self, content: Word, states: list[State]) -> list[State]:
        """Walk a whole text: a script, or what stands after `bash -c`."""
        source = Source(content)
        tree = parsed(content.text)
        for state in states:
            state.declared |= assigned_in(tree.root_node, source)
        if tree.root_node.has_error:
            self.record.note(
                "this is not complete shell text; the rest is read as far as possible",
                source.place(first_error(tree.root_node)),
            )
        deep = [node for node in tree.root_node.children if too_deep(node)]
        for node in deep:
            self.record.note(TOO_DEEP, source.place(node))
        read = [node for node in tree.root_node.children if node not in deep]
        return type(self)(self.record, source).statements(read, states)

    def uncalled_functions(self, states: Sequence[State]) -> None:
        """Bodies of functions that the script defines and leaves to others to call."""
        for state in states[:1]:
            for name, (source, body) in list(state.functions.items()):
                if name not in self.record.called:
                    type(self)(self.record, source).statements([body], [state.copy()])

    def redirected(self, node: "Node", state: State) -> list[State]:
        """A command with redirections, whose here-documents are read for themselves."""
        body = node.child_by_field_name("body")
        documents = [child for child in node.children if child.type == "heredoc_redirect"]
        states = [state] if body is None else self.statement(body, [state])
        for document in documents:
            self._document(node, body, document, state)
            for child in document.named_children:  # `cat <<EOF | program`
                if child.type in ("pipeline", "command"):
                    states = self.statement(child, states)
        return states

    def _document(self, node: "Node", body: "Node | None", document: "Node", state: State) -> None:
        """A here-document: a file that is written, a variable that is read, or a script."""
        expander = Expander(self.source, state)
        pieces = bounded(expander.heredoc(document), MOST_CONFIG_BYTES)
        content = Word(tuple(piece for piece in pieces if piece is not None))
        self.record.spend([content])
        if not content.pieces or not content.text.strip():
            return
        runs = body is not None and body.type == "command"
        texts = [w.text for w in expander.expanded(body.children)] if body and runs else []
        program = texts[0] if texts else ""
        if program == "read" and len(texts) > 1:
            variable = scalar(content.pieces)
            check_length(variable)
            state.set(texts[-1], variable)
            self.record.uses("$" + texts[-1])
            return
        if reads_script(texts):
            self._nested(content, state)
            return
        name = self._target(node, document, expander) or (texts[-1] if program == "tee" else "")
        if Path(name).suffix in (".sh", ".sbatch", ".slurm"):
            self._nested(content, state.copy())
        if program.startswith("python"):
            name = "standard input.py"
        if name:
            self.record.add_file(WrittenFile(name=name, content=content, branch=state.branch))

    def _target(self, node: "Node", document: "Node", expander: Expander) -> str:
        for child in (*node.children, *document.children):
            target = child.child_by_field_name("destination")
            if child.type == "file_redirect" and target is not None:
                return "".join(w.text for w in expander.expanded([target]))
        return ""

    def command(self, node: "Node", state: State) -> list[State]:
        """A simple command with the assignments in front of it."""
        expander = Expander(self.source, state)
        own = state.environment()
        for child in node.named_children:
            name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if child.type == "variable_assignment" and name is not None:
                empty = (Piece(text="", place=self.source.place(child)),)
                own[self.source.text(name)] = Word(expander.scalar(value) if value else empty)
        others = ("variable_assignment", "file_redirect", "herestring_redirect")
        self.record.uses(self.source.text(node))
        words = expander.expanded([child for child in node.children if child.type not in others])
        self.record.spend(words, len(own) // 10)
        return [state] if not words else self._run(words, own, state, node)

    def _run(
        self, words: list[Word], environment: dict[str, Word], state: State, node: "Node"
    ) -> list[State]:
        program = words[0].text
        if program in ("exit", "return"):
            state.ended = program
            return [state]
        if program in ("source", "."):
            if words[1:] and (content := state.file(words[1])) is not None:
                return self._nested(content, state)
            state.sourced = True
            what = " ".join(w.text for w in words[1:2])
            self.note(f"{program} {what}: the variables that it sets are not read", node)
            return [state]
        if program in state.functions and state.depth < _DEEPEST:
            return self._call(words, state)
        if program == "set" and "--" in (w.text for w in words[1:2]):
            set_positional(state, words[2:])
        if program == "shift":
            self.record.spend((), len(positional(state)))
            shift(state, words[1:])
        for w in words[1:] if program == "read" else ():
            if w.text.isidentifier():
                state.set(w.text, UNKNOWN)
        if program in _SILENT:
            return [state]
        words, environment = prefixed(words, environment)
        for content in nested_scripts(words):
            way = state.copy()
            way.variables |= {n: Variable(values=(v,)) for n, v in environment.items()}
            way.exported |= set(environment)
            results = self._nested(content, way)
            if program == "eval" and results:
                return results
        words = [w for one in words for w in _of_file(one, state)]
        place, branch = words[0].place if words else self.source.place(node), state.branch
        self.record.add(
            ShellCommand(words=tuple(words), place=place, environment=environment, branch=branch)
        )
        return [state]

    def _nested(self, content: Word, state: State) -> list[State]:
        if state.depth >= _DEEPEST:
            return [state]
        state.depth += 1
        results = self.text(content, [state])
        for result in results:
            result.depth -= 1
        return results

    def _call(self, words: list[Word], state: State) -> list[State]:
        source, body = state.functions[words[0].text]
        self.record.called.add(words[0].text)
        kept = {n: state.variables.get(n) for n in positional(state)}
        inside = state.copy()
        inside.depth += 1
        set_positional(inside, words[1:])
        results = type(self)(self.record, source).statements([body], [inside])
        for result in results:
            result.depth = state.depth
            result.ended = "" if result.ended == "return" else result.ended
            for name in positional(result):
                result.variables.pop(name)
            result.variables |= {n: v for n, v in kept.items() if v is not None}
        return results


_SHELLS: Final = ("bash", "sh", "zsh", "dash")
_COMMAND_FLAG: Final = re.compile(r"-[a-z]*c[a-z]*")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_EXPORT: Final = "--export="


def nested_scripts(words: Sequence[Word]) -> Iterator[Word]:
    """Texts among the words of a command that a shell will read."""
    texts = [word.text for word in words]
    if texts[:1] == ["eval"]:
        spaced = [(Piece(text=" ", place=word.place), *word.pieces) for word in words[1:]]
        yield Word(tuple(chain.from_iterable(spaced))[1:])
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


def _of_file(word: Word, state: State) -> Iterable[Word]:
    """The words of `@file`, as argparse reads them; any other word itself."""
    content = state.file(word.part(1)) if word.text[:1] == "@" else None
    return split_words(p.splitting(True) for p in content.pieces) if content else (word,)


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
