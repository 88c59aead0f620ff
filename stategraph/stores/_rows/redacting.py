"""Redaction: take the values of a key out of everything that is stored of a run.

The run is exported, and written again from the lines without the key, in one transaction where the store has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import attrs

from stategraph._owners.base import NewEntriesError, current
from stategraph._progress import blanked, progress_of, texts_in
from stategraph._values.entries import Entry, due_ns_after
from stategraph._values.ids import is_nested_id
from stategraph._values.progress import evolved
from stategraph._values.provenance import ErrorInfo, Kind
from stategraph.errors import CheckpointNotFoundError, UnknownNameError
from stategraph.state import State, evolve, recorded, taken_of, with_data
from stategraph.stores._codec.states import OLD_VALUES, changes_between, combine, pause_from_json, pause_to_json
from stategraph.stores._codec.type_codecs import DecodeError, unknown_shown
from stategraph.stores._rows.loading import read
from stategraph.stores._rows.records import RunRecord, WriteBatch
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores._rows.saving import next_place
from stategraph.stores._rows.transfer import batch_of, exported, runs_in, written
from stategraph.stores.serializers import from_plain, plain

_WITH_KEYS = {"message": 2, "turn": 2, "part": 0, "chunk": 2}
"""The kinds of entries that may have a key with its value, and the most tuples and lists around that."""


class Redaction:
    """What is taken out of the lines of a run, which are changed in place.

    Texts of the value may come before the value, so lines have to be read once, and then again.

    Args:
        key: The key.

    Attributes:
        is_held: Whether a line had a value of the key.
    """

    def __init__(self, key: str) -> None:
        self.is_held = False
        self._key, self._form, self._texts = key, plain(key), set[str]()
        self._mark = f"<{key}, redacted>"

    def line(self, line: dict[str, Any]) -> dict[str, Any]:
        """Take the key out of a line of a run, and return it."""
        if line["type"] == "entry":
            depth = _WITH_KEYS.get(line["kind"], -1)
            if depth >= 0:
                self._drop(line["value"], depth)
            line["value"] = self._value(line["value"], -1 if line["kind"] == "chunk" else depth)
        elif line["type"] == "checkpoint":
            changed, appended, removed, provenance, *edited = line["changes"]
            for part in edited:
                for edits in self._popped(part):
                    for edit in edits:
                        self._note(edit[-1])
            for part in (changed, appended, removed):
                self._drop(part)
                if isinstance(part, list):
                    part[:] = (name for name in part if name != self._form)
                elif is_nested_id(line["run_id"]):  # it may have the value by another name
                    part.update({name: self._value(value) for name, value in part.items() if name != "$type"})
            places = dict(enumerate(provenance)) if isinstance(provenance, list) else provenance or {}
            for place in (6, "6", "progress"):
                self._take_from_progress(places.get(place) or {})
            line["pause"] = line["pause"] and [*map(self._pause, line["pause"])]
            if line["error"]:
                line["error"][1] = self._blanked(line["error"][1])
        return line

    def state(self, state: State) -> State:
        """Return a State without the key."""
        changes, _ = changes_between(None, state, {})
        pause = pause_to_json(state.pause)
        error = None if state.error is None else state.error.parts
        about = {"changes": plain(changes), "pause": pause and json.loads(pause), "error": error}
        line = self.line({"type": "checkpoint", "run_id": state.run_id, **about})
        data, of_run = combine([from_plain(line["changes"])])
        kept = {"error": error and ErrorInfo(*error), "pause": pause and pause_from_json(json.dumps(line["pause"]))}
        return evolve(with_data(state, data), **kept, progress=of_run["progress"])

    def _take_from_progress(self, progress: dict[str, Any]) -> None:
        for name in OLD_VALUES:
            old = progress.get(name) or {}
            for values in self._popped(old):
                self._note(values)
                progress[name] = plain({**from_plain(old), self._key: []})
        if progress.get("woken"):
            progress["woken"] = json.dumps([*map(self._pause, json.loads(progress["woken"]))])
        if progress.get("partial"):
            self._drop(progress["partial"][1], 2)
            progress["partial"][1] = self._value(progress["partial"][1])

    def _drop(self, form: Any, depth: int = 0) -> None:
        """Take the key out of the plain form of updates, or of tuples and lists of them."""
        if isinstance(form, dict):
            for value in self._popped(form):
                self._note(value)
            form = form["value"] if form.get("$type") == "tuple" else None
        for part in form if depth and isinstance(form, list) else ():
            self._drop(part, depth - 1)

    def _popped(self, form: dict[str, Any]) -> list[Any]:
        """Take the key out of the plain form of a dict; return its value, or none."""
        if form.get("$type") != "dict":
            name = f"${self._key}" if self._key.startswith("$") else self._key
            return [form.pop(name)] if name in form else []
        pairs = form["value"]  # also of a key that no JSON text can hold
        form["value"] = [pair for pair in pairs if pair[0] != self._form]
        return [value for name, value in pairs if name == self._form]

    def _pause(self, pause: dict[str, Any]) -> dict[str, Any]:
        self._drop(pause["value"])
        about = {"reason": self._blanked(pause["reason"]), "value": self._value(pause["value"])}
        return {**pause, **about, "others": [*map(self._pause, pause.get("others", ()))]}

    def _note(self, form: Any) -> None:
        self.is_held = True
        self._texts.update(_texts_of_form(form))
        with suppress(DecodeError):  # a time has other texts than its form
            self._texts.update(texts_in(from_plain(form)))

    def _value(self, form: Any, depth: int = -1) -> Any:
        """Return the plain form of a value, with marks for texts of the value of the key.

        A list stays one, and so do the keys of updates, of which a value may have tuples and lists up to a depth. A
        tagged part becomes a mark if nothing else can be made of it.
        """
        if isinstance(form, list):
            return [self._value(part, depth - 1) for part in form]
        if not isinstance(form, dict):
            return self._blanked(form)
        if "$type" not in form:
            return {name if depth >= 0 else self._key_of(name): self._value(part) for name, part in form.items()}
        tag, parts = form["$type"], form["value"]
        if tag in ("object", "enum"):  # the name of a class, and its version or the name of a member, stay
            made = [*parts[:2], *self._value(parts[2:])]
        else:
            made = self._value(parts, depth if tag == "tuple" else -1)
        kept = {"$type": tag, "value": made}
        try:
            from_plain(kept)
        except DecodeError:  # of an object, say, whose class refuses a mark
            return self._mark
        return kept

    def _key_of(self, name: str) -> str:
        blanked: str = self._blanked(name)
        return self._mark if blanked.startswith(f"${self._mark}") else blanked  # a lone $ begins a tag

    def _blanked(self, form: Any) -> Any:
        return blanked(form, self._texts, self._mark)

    def entry(self, entry: Entry) -> Entry:
        """Return an entry without the key."""
        line = self.line({"type": "entry", "kind": entry.kind, "value": plain(entry.value)})
        return attrs.evolve(entry, value=from_plain(line["value"]))

    def recorded(self, newest: State, by: str | None) -> State:
        """Return the newest State as the record of the redaction.

        Raises:
            UnknownNameError: the run has had no such key.
        """
        progress = progress_of(newest)
        if not self.is_held and self._key not in progress.redacted:
            raise UnknownNameError("key", self._key, newest)
        origins = {name: origin.without({self._key}) for name, origin in progress.origins.items()}
        changed = evolved(progress, redacted=progress.redacted | {self._key}, origins=origins)
        return recorded(newest, Kind.REDACT, by, progress=changed)


def _texts_of_form(form: Any) -> Iterator[str]:
    """Yield the texts and numbers in a plain form, but not those of its tags."""
    if isinstance(form, dict):
        is_named = form.get("$type") in ("object", "enum")
        form = form["value"][2:] if is_named else form["value"] if "$type" in form else [*form, *form.values()]
    if isinstance(form, list):
        for part in form:
            yield from _texts_of_form(part)
    elif form is not None and not isinstance(form, bool):
        yield str(form)


def lines_as(lines: Iterable[str], shown: Callable[[str, Any], Any]) -> Iterator[str]:
    """Yield lines of runs without the keys whose values a function shows otherwise."""
    found = [json.loads(line) for line in lines]
    parts = [part for line in found for part in (*line.get("changes", [{}])[0:2], line.get("value"))]
    with unknown_shown():
        values = [(key, value) for part in parts if isinstance(part, dict) for key, value in from_plain(part).items()]
    for key in {key for key, value in values if shown(key, value) is not value}:
        redaction = Redaction(key)
        for line in (*found, *found):
            redaction.line(line)
    return map(written, found)


def redact(log: RunLog, run_id: str, key: str, by: str | None) -> None:
    """Redact a run that the caller owns, as `CheckpointStore.redact`."""
    with unknown_shown():  # no class of a value is needed
        read(log, run_id, lambda run: _is_redacted(log, run, key, by))


def _is_redacted(log: RunLog, run: RunRecord, key: str, by: str | None) -> bool | None:
    """Redact a run; return None if others have written to it, or to its inbox, at the same time."""
    owner = current.ownership
    if owner is not None:  # an answer that is appended now makes the run due
        owner.inbox, owner.refuses_new_entries = log.table.inbox(run.run_id), True
    redaction = Redaction(key)
    for _ in range(2):
        runs = [[redaction.line(line) for line in each] for each in runs_in(exported(log, run.run_id, whole=True))]
    batches = [_batch(log, *each) for each in runs]
    batches[0] = _recorded(log, batches[0], redaction, by)
    outcomes = log.table.apply(batches[::-1])  # the run itself last: until then, all can be done again
    for batch, outcome in zip(batches[::-1], outcomes, strict=True):
        log.forget(batch.run_id)
        if isinstance(outcome, Exception) and not isinstance(outcome, NewEntriesError):
            raise outcome
    return all(outcome is True for outcome in outcomes) or None


def _batch(log: RunLog, fields: dict[str, Any], *lines: dict[str, Any]) -> WriteBatch:
    """Return the batch that writes a run again from its lines."""
    old = log.find(fields["run_id"])
    if old is None:
        raise CheckpointNotFoundError(fields["run_id"], log.table.store)
    batch = batch_of(log, fields, list(lines), old.incarnation)
    run = log.sealer.sealed_run(log.sealer.check_run(batch.run)._replace(version=old.version + 1))
    return attrs.evolve(batch, run=run, old=old, outer=log.outer_of(run), taken=0, cut_below=batch.put[0].sequence)


def _recorded(log: RunLog, batch: WriteBatch, redaction: Redaction, by: str | None) -> WriteBatch:
    """Return the batch with a checkpoint that records the redaction."""
    run, last = batch.run, batch.put[-1]
    chain = [row for row in batch.put if row.base == last.base]
    state = redaction.recorded(log.encoder.state(run.run_id, chain, run.incarnation), by)
    keeps_all = run.policy.keeps_all
    place = next_place(log, run, state) if keeps_all else (last.sequence, last.revision)
    row, _ = log.encoder.encode(state, run.incarnation, place)
    rows = *batch.put[: None if keeps_all else -1], row
    unread = [entry for entry in batch.entries if not entry.step and entry.seq > taken_of(state)]
    run = log.next_run(batch.old, row, state, run.incarnation)
    run = run._replace(due_ns=due_ns_after(unread) or batch.run.due_ns)  # Redis keeps it beside the record
    needed = min(row.base for row in rows[run.policy.first_kept(rows) :])
    return attrs.evolve(batch, run=run, put=rows, cut_below=needed)
