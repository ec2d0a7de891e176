"""Commands of a shell script: what runs, what another program runs for it, what it writes."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from advisor.base.limits import MOST_CONFIG_BYTES
from advisor.reading.shell.assignments import Assignments
from advisor.reading.shell.expansion import Expander, Source, bounded, check_length
from advisor.reading.shell.script import Command, WrittenFile
from advisor.reading.shell.state import (
    UNKNOWN,
    State,
    Variable,
    positional,
    scalar,
    set_positional,
    shift,
)
from advisor.reading.shell.syntax import TOO_DEEP, assigned_in, first_error, parsed, too_deep
from advisor.reading.shell.wrappers import nested_scripts, prefixed, reads_script
from advisor.reading.words import Piece, Word

if TYPE_CHECKING:
    from tree_sitter import Node

_DEEPEST: Final = 8
_SILENT: Final = (
    "echo",
    "printf",
    "logger",
    "mkdir",
    "cd",
    "rm",
    "cp",
    "mv",
    "ls",
    "sleep",
    "wait",
)


class Commands(Assignments):
    """One source's commands on their way through the interpreter."""

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
            place = source.place(first_error(tree.root_node))
            self.record.note(
                "this is not complete shell text; the rest is read as far as possible", place
            )
        read = []
        for node in tree.root_node.children:
            if too_deep(node):
                self.record.note(TOO_DEEP, source.place(node))
            else:
                read.append(node)
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
        words = expander.words(body.children) if body is not None and body.type == "command" else []
        texts = [w.text for w in words]
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
        if program.startswith("python"):
            name = "standard input.py"
        if name:
            self.record.add_file(WrittenFile(name=name, content=content, branch=state.branch))

    def _target(self, node: "Node", document: "Node", expander: Expander) -> str:
        for child in (*node.children, *document.children):
            target = child.child_by_field_name("destination")
            if child.type == "file_redirect" and target is not None:
                return "".join(w.text for w in expander.words([target]))
        return ""

    def command(self, node: "Node", state: State) -> list[State]:
        """A simple command with the assignments in front of it."""
        expander = Expander(self.source, state)
        own = dict(state.environment())
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                if name is not None:
                    pieces = [] if value is None else expander.scalar(value)
                    own[self.source.text(name)] = Word(
                        tuple(pieces) or (Piece(text="", place=self.source.place(child)),)
                    )
        nodes = [
            child
            for child in node.children
            if child.type not in ("variable_assignment", "file_redirect", "herestring_redirect")
        ]
        self.record.uses(self.source.text(node))
        words = expander.words(nodes)
        self.record.spend(words, len(own) // 10)
        if not words:
            return [state]
        return self._run(words, own, state, node)

    def _run(
        self, words: list[Word], environment: dict[str, Word], state: State, node: "Node"
    ) -> list[State]:
        program = words[0].text
        if program in ("exit", "return"):
            state.ended = program
            return [state]
        if program in ("source", "."):
            what = " ".join(w.text for w in words[1:2])
            self.note(f"{program} {what}: the variables that it sets are not read", node)
            return [state]
        if program in state.functions and state.depth < _DEEPEST:
            return self._call(words, state)
        if program == "shift":
            self.record.spend((), len(positional(state)))
            shift(state, words[1:])
            return [state]
        if program in ("set", "getopts", "read"):
            for w in words[1:]:
                if program == "read" and w.text.isidentifier():
                    state.set(w.text, UNKNOWN)
            return [state]
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
        self.record.add(
            Command(
                words=tuple(words),
                place=words[0].place if words else self.source.place(node),
                environment=environment,
                branch=state.branch,
            )
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
        self.record.calls(words[0].text)
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
