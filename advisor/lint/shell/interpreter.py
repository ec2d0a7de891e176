"""Walks a shell script along all its branches and collects the commands on the way.

A condition that the script decides itself is decided; any other parts the way in two, each with its
own variables, so that what one branch sets never meets what another does.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Final

from advisor.lint.shell.conditions import Verdict, assume, is_test, judge
from advisor.lint.shell.expansion import Expander, Source
from advisor.lint.shell.script import Command, Note, Script, WrittenFile
from advisor.lint.shell.state import UNKNOWN, State, Variable, doubted, joined, scalar
from advisor.lint.shell.wrappers import nested_scripts, prefixed, reads_script
from advisor.lint.text import Piece, Place, Word, split_words, word

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_MOST_WAYS: Final = 256
_MOST_ROUNDS: Final = 12
_DEEPEST: Final = 8
_DECLARATIONS: Final = ("export", "declare", "local", "readonly", "typeset")
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
_QUOTED_COMMENT: Final = re.compile(r"`\s*#[^`\n]*`")
_DIRECTIVE: Final = re.compile(r"#\s?SBATCH\s+")


def read(content: Word) -> Script:
    """Every command of a script, each as it is run on each way through it."""
    reading = Reading()
    states = reading.text(content, [State()])
    reading.uncalled_functions(states)
    reading.fragments(states)
    return reading.script


@cache
def _parser() -> "Parser":
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


class Reading:
    """The commands found so far."""

    def __init__(self) -> None:
        self.script = Script()
        self._seen: dict[object, int] = {}
        self._called: set[str] = set()
        self._assigned: dict[str, list[Variable]] = {}
        self._used: set[str] = set()

    def text(self, content: Word, states: list[State]) -> list[State]:
        """Walk a whole text: a script, or what stands behind `bash -c`."""
        source = Source(content)
        tree = _parser().parse(_without_comments(content.text).encode())
        for state in states:
            state.declared |= _assigned_in(tree.root_node, source)
        if tree.root_node.has_error:
            place = source.place(_first_error(tree.root_node))
            self._note(
                "the text is no complete shell here; what follows is read as far as it goes", place
            )
        return _Walk(self, source).statements(tree.root_node.children, states)

    def add(self, command: Command) -> None:
        """Keep a command; found again with the same words, it depends only on what both share."""
        values = tuple((name, value.text) for name, value in command.environment.items())
        key = (command.place, command.texts, values)
        commands = self.script.commands
        if key in self._seen:
            at = self._seen[key]
            commands[at] = replace(commands[at], branch=_shared(commands[at], command))
        elif command.words:
            self._seen[key] = len(commands)
            commands.append(command)

    def add_file(self, file: WrittenFile) -> None:
        """Keep a here-document."""
        key = (file.name, file.content.place, file.content.text)
        if key not in self._seen:
            self._seen[key] = len(self.script.files)
            self.script.files.append(file)

    def _note(self, text: str, place: Place) -> None:
        note = Note(text, place)
        if note not in self.script.notes:
            self.script.notes.append(note)

    def note(self, text: str, source: Source, node: "Node") -> None:
        """Say what cannot be known."""
        self._note(text, source.place(node))

    def calls(self, name: str) -> None:
        """A function was called."""
        self._called.add(name)

    def assigned(self, name: str, variable: Variable) -> None:
        """Remember what a variable was given, for scripts that only set options."""
        self._assigned.setdefault(name, []).append(variable)

    def uses(self, text: str) -> None:
        """Variables that a command's text names."""
        self._used.update(re.findall(r"\$\{?[#!]?(\w+)", text))

    def uncalled_functions(self, states: Sequence[State]) -> None:
        """Bodies of functions that the script defines and leaves to others to call."""
        for state in states[:1]:
            for name, (source, body) in list(state.functions.items()):
                if name not in self._called:
                    _Walk(self, source).statements([body], [state.copy()])

    def fragments(self, states: Sequence[State]) -> None:
        """Lists of options that no command of the script uses: another file runs them."""
        for name, variables in self._assigned.items():
            if name in self._used:
                continue
            for variable in variables:
                words = _as_words(variable)
                if any(w.text.startswith("--") for w in words):
                    environment = states[0].environment() if states else {}
                    self.add(Command(words=words, place=words[0].place, environment=environment))


def _without_comments(text: str) -> str:
    """A comment between backquotes, which runs nothing, hides the end of its line from the grammar:
    as many spaces in its place."""
    return _QUOTED_COMMENT.sub(lambda match: " " * len(match[0].encode()), text)


def _shared(one: Command, other: Command) -> tuple[str, ...]:
    return tuple(text for text in one.branch if text in other.branch)


def _as_words(variable: Variable) -> tuple[Word, ...]:
    pieces: list[Piece | None] = []
    for value in variable.values or ():
        pieces += [replace(piece, splits=not variable.array) for piece in value.pieces]
        pieces.append(None)
    return tuple(split_words(pieces))


def _first_error(node: "Node") -> "Node":
    for child in node.children:
        if child.type == "ERROR" or child.is_missing:
            return child
        if child.has_error:
            return _first_error(child)
    return node


class _Walk:
    """One source on its way through the interpreter."""

    def __init__(self, reading: Reading, source: Source) -> None:
        self.reading = reading
        self.source = source

    def statements(self, nodes: Iterable["Node"], states: list[State]) -> list[State]:
        """Statements one after the other, each in all states that still run."""
        for node in nodes:
            running = [state for state in states if not state.ended]
            stopped = [state for state in states if state.ended]
            if not running:
                return states
            states = stopped + self.statement(node, running)
        return states

    def statement(self, node: "Node", states: list[State]) -> list[State]:
        """One statement in all states."""
        match node.type:
            case "comment":
                self._directive(node, states[0])
                return states
            case "if_statement":
                return self._each(states, lambda state: self._if(node, state))
            case "case_statement":
                return self._each(states, lambda state: self._case(node, state))
            case "for_statement":
                return self._each(states, lambda state: self._for(node, state))
            case "while_statement" | "c_style_for_statement":
                return self._each(states, lambda state: self._while(node, state))
            case "function_definition":
                return self._each(states, lambda state: self._define(node, state))
            case "list":
                return self._each(states, lambda state: self._list(node, state))
            case "subshell":
                for state in states:
                    self.statements(node.named_children, [state.copy()])
                return states
            case "redirected_statement":
                return self._each(states, lambda state: self._redirected(node, state))
            case "command":
                return self._each(states, lambda state: self._command(node, state))
            case "variable_assignment":
                for state in states:
                    self._assign(node, state)
                return states
            case "declaration_command":
                for state in states:
                    self._declare(node, state)
                return states
            case "unset_command":
                return self._unset(node, states)
            case _:
                return self.statements(node.named_children, states)

    def _each(self, states: list[State], step: Callable[[State], list[State]]) -> list[State]:
        results: list[State] = []
        for state in states:
            results += step(state)
        return self._bounded(results, states[0])

    def _bounded(self, states: list[State], before: State) -> list[State]:
        """At most so many ways: beyond that, those that differ are no longer told apart."""
        running = [state for state in states if not state.ended]
        distinct: dict[object, State] = {}
        for state in running:
            values = tuple(sorted((n, _key(v)) for n, v in state.variables.items()))
            distinct.setdefault((values, tuple(sorted(state.assumed.items()))), state)
        ways = list(distinct.values())
        if len(ways) <= _MOST_WAYS:
            return ways
        return [joined(ways, before)]

    def _directive(self, node: "Node", state: State) -> None:
        text = self.source.text(node)
        match = _DIRECTIVE.match(text)
        if match:
            behind = word(
                text[match.end() :].partition(" #")[0], self.source.place(node).after(match[0])
            )
            expanded = [Piece(text=p.text, place=p.place, splits=True) for p in behind.pieces]
            self.reading.script.directives.extend(split_words(expanded))

    # --- branches ---

    def _if(self, node: "Node", state: State) -> list[State]:
        results: list[State] = []
        arms = _arms(node)
        open_ways = [state]
        for conditions, body in arms:
            remaining: list[State] = []
            for way in open_ways:
                taken, not_taken = self._condition(conditions, way)
                results += self.statements(body, taken)
                remaining += not_taken
            open_ways = remaining
        return results + open_ways

    def _condition(self, nodes: Sequence["Node"], state: State) -> tuple[list[State], list[State]]:
        """States in which the condition holds, and those in which it does not."""
        if not nodes:
            return [state], []
        text = self.source.between(nodes[0].start_byte, nodes[-1].end_byte).rstrip("; \n")
        verdict = judge(nodes[0], Expander(self.source, state)) if len(nodes) == 1 else Verdict()
        if verdict.truth is not None:
            return ([state], []) if verdict.truth else ([], [state])
        for node in nodes:
            if not is_test(node):
                self.statement(node, [state.copy()])
        return [assume(state, text, verdict, True)], [assume(state, text, verdict, False)]

    def _case(self, node: "Node", state: State) -> list[State]:
        subject = node.child_by_field_name("value")
        expander = Expander(self.source, state)
        words = expander.words([subject]) if subject is not None else []
        known = "".join(w.text for w in words) if all(w.certain for w in words) else None
        results: list[State] = []
        matched = False
        for item in (child for child in node.named_children if child.type == "case_item"):
            patterns = item.children_by_field_name("value")
            texts = [self.source.text(pattern).strip("\"'") for pattern in patterns]
            if known is not None and not any(fnmatchcase(known, text) for text in texts):
                continue
            way = self._assume_pattern(state, subject, patterns, texts, known is None)
            body = [
                c
                for c in item.named_children
                if c not in patterns and c.start_byte > patterns[-1].end_byte
            ]
            results += self.statements(body, [way])
            matched = matched or "*" in texts or known is not None
            if known is not None:
                break
        if not matched:
            results.append(state)
        return results

    def _assume_pattern(
        self,
        state: State,
        subject: "Node | None",
        patterns: Sequence["Node"],
        texts: Sequence[str],
        unknown: bool,
    ) -> State:
        way = state.copy()
        if subject is None or not unknown:
            return way
        way.branch = (*way.branch, f"{self.source.text(subject)} is {' or '.join(texts)}")
        name = self.source.text(subject).strip('"').removeprefix("$").strip("{}").partition(":")[0]
        literal = len(texts) == 1 and not set(texts[0]) & set("*?[$")
        if name.isidentifier() and literal:
            way.set(name, scalar(word(texts[0], self.source.place(patterns[0])).pieces))
        return way

    def _for(self, node: "Node", state: State) -> list[State]:
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        name = self.source.text(variable) if variable is not None else ""
        values = Expander(self.source, state).words(node.children_by_field_name("value"))
        known = values and not any(value.unknown or "*" in value.text for value in values)
        rounds = values[:_MOST_ROUNDS] if known else [None]
        states = [state]
        for value in rounds:
            for way in states:
                way.set(name, UNKNOWN if value is None else Variable(values=(value,)))
                way.branch = state.branch
            if body is not None:
                states = self._bounded(self.statements([body], states), state)
        return states

    def _while(self, node: "Node", state: State) -> list[State]:
        """The body is read once; what it changes is as likely as not to be changed."""
        for condition in node.children_by_field_name("condition"):
            if condition.is_named and not is_test(condition):
                self.statement(condition, [state.copy()])
        body = node.child_by_field_name("body")
        if body is None:
            return [state]
        inside = state.copy()
        for name in _assigned_in(body, self.source):
            if name in inside.variables:
                inside.variables[name] = doubted(inside.variables[name])
        ways = [way for way in self.statements([body], [inside.copy()]) if not way.ended]
        return [joined([inside, *ways], state)]

    def _define(self, node: "Node", state: State) -> list[State]:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            state.functions[self.source.text(name)] = (self.source, body)
        return [state]

    def _list(self, node: "Node", state: State) -> list[State]:
        """`A && B` and `A || B`."""
        left, right = node.named_children[0], node.named_children[-1]
        either = any(child.type == "||" for child in node.children)
        if is_test(left):
            yes, no = self._condition([left], state)
            runs, passes = (no, yes) if either else (yes, no)
            return self.statements([right], runs) + passes
        states = self.statement(left, [state])
        if either:
            self.statements([right], [way.copy() for way in states if not way.ended])
            return states
        return self.statements([right], states)

    # --- variables ---

    def _assign(self, node: "Node", state: State, *, export: bool = False) -> None:
        name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None:
            return
        name = self.source.text(name_node).partition("[")[0]
        if name_node.type == "subscript":
            state.set(name, UNKNOWN)
            return
        variable = self._value(value, state, node)
        if any(child.type == "+=" for child in node.children):
            variable = _appended(state.variables.get(name), variable)
        if value is not None:
            self.reading.uses(self.source.text(value))
        state.set(name, variable, export=export or name in state.exported)
        self.reading.assigned(name, variable)

    def _value(self, value: "Node | None", state: State, node: "Node") -> Variable:
        expander = Expander(self.source, state)
        if value is None:
            return scalar([Piece(text="", place=self.source.place(node))])
        if value.type == "array":
            return Variable(values=tuple(expander.words(value.named_children)), array=True)
        return scalar(expander.scalar(value))

    def _declare(self, node: "Node", state: State) -> None:
        keyword = self.source.text(node.children[0])
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assign(child, state, export=keyword == "export")
            elif child.type == "variable_name" and keyword == "export":
                state.exported.add(self.source.text(child))

    def _unset(self, node: "Node", states: list[State]) -> list[State]:
        for state in states:
            for child in node.named_children:
                state.variables.pop(self.source.text(child), None)
                state.exported.discard(self.source.text(child))
        return states

    # --- commands ---

    def _redirected(self, node: "Node", state: State) -> list[State]:
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
        content = Word(tuple(expander.heredoc(document)))
        if not content.pieces or not content.text.strip():
            return
        words = expander.words(body.children) if body is not None and body.type == "command" else []
        texts = [w.text for w in words]
        program = texts[0] if texts else ""
        if program == "read" and len(texts) > 1:
            state.set(texts[-1], scalar(content.pieces))
            self.reading.uses("$" + texts[-1])
            return
        if reads_script(texts):
            self._nested(content, state)
            return
        name = self._target(node, document, expander) or (texts[-1] if program == "tee" else "")
        if program.startswith("python"):
            name = "standard input.py"
        if name:
            self.reading.add_file(WrittenFile(name=name, content=content, branch=state.branch))

    def _target(self, node: "Node", document: "Node", expander: Expander) -> str:
        for child in (*node.children, *document.children):
            target = child.child_by_field_name("destination")
            if child.type == "file_redirect" and target is not None:
                return "".join(w.text for w in expander.words([target]))
        return ""

    def _command(self, node: "Node", state: State) -> list[State]:
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
        self.reading.uses(self.source.text(node))
        words = expander.words(nodes)
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
            self.reading.note(f"{program} {what}: what it sets is not read", self.source, node)
            return [state]
        if program in state.functions and state.depth < _DEEPEST:
            return self._call(words, state)
        if program == "shift":
            _shift(state, words[1:])
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
        self.reading.add(
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
        results = self.reading.text(content, [state])
        for result in results:
            result.depth -= 1
        return results

    def _call(self, words: list[Word], state: State) -> list[State]:
        source, body = state.functions[words[0].text]
        self.reading.calls(words[0].text)
        kept = {n: state.variables.get(n) for n in _positional(state)}
        inside = state.copy()
        inside.depth += 1
        _set_positional(inside, words[1:])
        results = _Walk(self.reading, source).statements([body], [inside])
        for result in results:
            result.depth = state.depth
            result.ended = "" if result.ended == "return" else result.ended
            for name in _positional(result):
                result.variables.pop(name)
            result.variables |= {n: v for n, v in kept.items() if v is not None}
        return results


def _set_positional(state: State, words: Sequence[Word]) -> None:
    for number, w in enumerate(words, 1):
        state.variables[str(number)] = Variable(values=(w,))
    state.variables["@"] = state.variables["*"] = Variable(values=tuple(words), array=True)


def _shift(state: State, words: Sequence[Word]) -> None:
    """`shift 2`; of a script's own parameters nothing is known before or behind it."""
    known = state.variables.get("@")
    count = int(words[0].text) if words and words[0].text.isdigit() else 1
    for name in _positional(state):
        del state.variables[name]
    if known is not None and known.values is not None:
        _set_positional(state, known.values[count:])


def _positional(state: State) -> list[str]:
    return [name for name in state.variables if name.isdigit() or name in ("@", "*")]


def _key(variable: Variable) -> tuple[tuple[str, bool], ...]:
    if variable.values is None:
        return (("?", False),)
    return tuple((value.text, value.certain) for value in variable.values)


def _arms(node: "Node") -> list[tuple[list["Node"], list["Node"]]]:
    """Conditions and body of an if, of each elif, and of the else, which has no condition."""
    conditions = node.children_by_field_name("condition")
    conditions = [c for c in conditions if c.is_named]
    last = conditions[-1].end_byte if conditions else node.start_byte
    body = [
        c
        for c in node.named_children
        if c.start_byte >= last
        and c.type not in ("elif_clause", "else_clause")
        and c not in conditions
    ]
    arms = [(conditions, body)]
    for clause in node.named_children:
        if clause.type == "elif_clause":
            found = _elif(clause)
            arms.append(found)
        elif clause.type == "else_clause":
            arms.append(([], list(clause.named_children)))
    return arms


def _elif(clause: "Node") -> tuple[list["Node"], list["Node"]]:
    then = next((c.start_byte for c in clause.children if c.type == "then"), clause.end_byte)
    inside = clause.named_children
    return [c for c in inside if c.start_byte < then], [c for c in inside if c.start_byte > then]


def _assigned_in(node: "Node", source: Source) -> set[str]:
    found = set()
    if node.type == "variable_assignment":
        name = node.child_by_field_name("name")
        if name is not None:
            found.add(source.text(name))
    for child in node.children:
        found |= _assigned_in(child, source)
    return found


def _appended(before: Variable | None, added: Variable) -> Variable:
    """`X+=value`: elements of an array, or characters of a word."""
    if added.values is None or (before is not None and before.values is None):
        return UNKNOWN
    if before is None or not before.values:
        return added
    if before.array or added.array:
        return Variable(values=(*before.values, *added.values), array=True)
    pieces = [piece for value in (*before.values, *added.values) for piece in value.pieces]
    return scalar(pieces)
