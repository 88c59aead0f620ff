"""RowStore: the base of stores that keep records in a table."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import attrs

from stategraph._owners.base import Orphan, Ownership, Refused, current, owned, owner_here
from stategraph._values.entries import Entry, are_of_inbox, check_kinds, lasting_kinds
from stategraph._values.ids import check_run_id, given_id
from stategraph._values.progress import KeptParts, Part
from stategraph._values.provenance import Owner
from stategraph.errors import CheckpointError, ConfigError, InvalidRunIdError
from stategraph.state import State
from stategraph.stores._checks import (
    Filters,
    RunFilter,
    check_flags,
    check_numbers,
    check_state,
    check_unknown,
    filtered,
)
from stategraph.stores._codec.type_codecs import unknown_shown
from stategraph.stores._rows import nested
from stategraph.stores._rows.cipher import Cipher, EncryptionKeys, is_encrypted, plain_accepted
from stategraph.stores._rows.encoder import CheckpointEncoder
from stategraph.stores._rows.entries import append_to_inbox, append_to_journal, cut_journal, entries, entry_named
from stategraph.stores._rows.loading import history, iter_history, listing, load
from stategraph.stores._rows.maintenance import heads, prune, rekey, verify
from stategraph.stores._rows.records import MAX_STEP, RunRecord
from stategraph.stores._rows.redacting import lines_as
from stategraph.stores._rows.redacting import redact as redact_run
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores._rows.saving import Saves, save, save_runs
from stategraph.stores._rows.seals import Sealer, former_keys, signing_key
from stategraph.stores._rows.table import Identify, Table
from stategraph.stores._rows.transfer import encrypted_lines, exported, imported
from stategraph.stores._seen import shown_by
from stategraph.stores.base import CheckpointStore, RetentionPolicy, SigningKey
from stategraph.stores.summaries import Pruned, Rekeyed, Summary, UnderWay, Verified

_PAGE = 1_000  # runs
_LOOKED_AT = 10  # runs to check for signatures when a store is opened


class RowOptions(TypedDict, total=False):
    """Options of every durable store; see RowStore."""

    sign_with: SigningKey | str | None
    verify_with: Sequence[SigningKey | str]
    encrypt_with: EncryptionKeys | Callable[[str], EncryptionKeys] | None
    encrypt_labels: bool
    serializer: str
    compress: bool
    redact: Callable[[str, Any], Any] | str | None


class RowStore(CheckpointStore):
    """The stores that keep runs in files or on a server: their options, and the methods that other stores lack.

    Args:
        sign_with: Sign rows (HMAC-SHA-256) with the key, of at least 16 bytes, that this function returns or that the
            environment variable of this name holds. Rows that are unsigned, or signed with another key, are refused.
            The page "Signing" describes what a signature guarantees.
        verify_with: Former keys, each as for `sign_with`. Rows signed with them can still be read; new rows are signed
            with the key of `sign_with`.
        encrypt_with: Encrypt what users put into runs (AES-GCM) with a key of 32 bytes; with the first of a mapping of
            names to keys, all of which decrypt; or with what a function of the run id returns of these. In place of a
            key stands the name of an environment variable that holds it in hex. Rows that are not encrypted, or were
            encrypted with another key or elsewhere, are refused. Requires the extra ``[crypto]``. The page "Encryption"
            describes what it guarantees.
        encrypt_labels: Whether to encrypt labels and authors too. Then `runs` cannot search by label.
        serializer: Name of the serializer of new rows: "msgpack", "json", or a registered one. Rows of all known
            serializers can be read.
        compress: Whether to compress new rows where that pays; requires the extra ``[zstd]``.
        redact: A function of a key and its value, or the name of one, as in "app.privacy:shown": returns what the page,
            the command line, exports and events show of the value. It changes nothing that is stored.

    Raises:
        ConfigError: an option is invalid, or the environment variable is not set.
        UnknownNameError: no serializer has this name.

    Attributes:
        kind: The name of this kind of store.
        path: The location of the records.
    """

    kind: str
    path: Path

    def __init__(  # noqa: PLR0913 - the options of all durable stores
        self,
        open_table: Callable[[Identify], Table],  # called with a function that takes the id of the store
        *,
        sign_with: SigningKey | str | None = None,
        verify_with: Sequence[SigningKey | str] = (),
        encrypt_with: EncryptionKeys | Callable[[str], EncryptionKeys] | None = None,
        encrypt_labels: bool = False,
        serializer: str = "msgpack",
        compress: bool = False,
        redact: Callable[[str, Any], Any] | str | None = None,
    ) -> None:
        check_flags(encrypt_labels=encrypt_labels)
        if encrypt_labels and encrypt_with is None:
            raise ConfigError(
                "checkpoint.options.encrypt_labels", True, "with encrypt_with, the key that encrypts them"
            )
        self.shown: Callable[[str, Any], Any] | None = shown_by(redact)
        self.signing_key: SigningKey | None = signing_key(sign_with)
        self.cipher: Cipher | None = None if encrypt_with is None else Cipher(encrypt_with, encrypt_labels)
        sealer = Sealer(self.signing_key, former_keys(verify_with), self.cipher)
        encoder, self._serializer = CheckpointEncoder(sealer, serializer, compress), serializer
        self._table = open_table(sealer.identify)
        self._log = RunLog(self._table, sealer, encoder)
        if not sealer.signs or self.cipher is None:
            with suppress(CheckpointError):  # damaged runs raise when they are read
                self._warn_of_keyed(sealer)

    def _warn_of_keyed(self, sealer: Sealer) -> None:
        """Log that a store with signed or encrypted runs was opened without a key."""
        some = [run for run in self._table.runs(RunFilter(), _LOOKED_AT, None) if isinstance(run, RunRecord)]
        is_signed = not sealer.signs and any(sealer.is_signed(run.seal) for run in some)
        is_secret = self.cipher is None and any(is_encrypted(run.pause) for run in some)
        done, option = ("signed", "sign_with") if is_signed else ("encrypted", "encrypt_with")
        if is_signed or is_secret:
            logging.getLogger("stategraph").warning(
                "the %s holds runs that are %s, and was opened without %s: these cannot be loaded, and new "
                "rows are not %s; open it with %s",
                *(self, done, option, done, option),
            )

    def __str__(self) -> str:
        return f"{self.kind} store at {self.path}"

    def close(self) -> None:
        self._table.close()

    @property
    def closed(self) -> bool:
        return self._table.closed

    # ------------------------------------------------------------------ saving and loading

    checks_owners = True

    def _own(self, ownership: Ownership, *, take_over: bool = False) -> None:
        ownership.store = self
        self._table.owners.own(ownership, self._table, take_over=take_over)

    def _has_lost(self, ownership: Ownership) -> bool:
        return self._log.has_lost(ownership)

    def _cancel(self, run_id: str, by: str | None) -> None:
        self._table.set_cancelled(run_id, True, self._log.sealer.signed_author(run_id, by))
        ownership = self._table.owners.get(run_id)
        if ownership is not None:
            ownership.is_cancelled = True

    def _begin_at_node(self, ownership: Ownership) -> Any:
        ownership.transaction = self._table.begin(ownership.run_id)
        return super()._begin_at_node(ownership) if ownership.transaction is None else ownership.transaction.connection

    def _is_cancelled(self, ownership: Ownership) -> bool:
        if not ownership.is_cancelled:
            fence, ownership.is_cancelled = self._table.fence(ownership.run_id)
            if fence != ownership.fence:
                ownership.is_lost = True
            if ownership.inbox is not None:
                ownership.inbox = max(ownership.inbox, self._table.inbox(ownership.run_id))
        ownership.check()
        return ownership.is_cancelled

    def _cancelled_by(self, run_id: str) -> str | None:
        return self._log.sealer.author(run_id, self._table.cancelled_by(run_id))

    def _take_up(self, ownership: Ownership) -> None:
        self._table.set_cancelled(ownership.run_id, False)
        ownership.is_cancelled = False

    def _orphans(self, graph: str, refused: Refused) -> Iterator[Orphan] | None:
        return self._table.owners.orphans(graph, refused)

    def owner(self, run_id: str) -> Owner | None:
        return self._table.owners.owner(given_id(check_run_id(run_id)), self._table)

    def save(self, state: State) -> None:
        try:
            ownership = current.ownership
            if ownership is not None and ownership.store is self and ownership.run_id == state.run_id:
                save(self._log, state)
                return
            with owned(self, state.run_id):
                save(self._log, state)
        except AttributeError as error:
            check_state(state, error)
            raise

    def amend(self, state: State) -> None:
        with owned(self, state.run_id):
            save(self._log, state, may_change_data=True)

    def save_many(self, states: Sequence[State]) -> None:
        if states:
            with owned(self, states[0].run_id) as ownership:
                (error,) = save_runs(self._log, [(ownership, states)])
            if error is not None:
                raise error

    @property
    def _is_server(self) -> bool:
        return self._table.is_server

    def _save_runs(self, runs: Sequence[Saves]) -> builtins.list[Exception | None]:
        return save_runs(self._log, runs)

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:
        self._log.retain(check_run_id(run_id), policy)

    def load(
        self, run_id: str, step: int | None = None, revision: int | None = None, *, unknown: str | None = None
    ) -> State:
        check_numbers(step, revision)
        check_unknown(unknown)
        with unknown_shown() if unknown else nullcontext():
            return load(self._log, check_run_id(run_id), step, revision)

    def history(self, run_id: str, *, after: str | None = None) -> builtins.list[Summary]:
        return history(self._log, check_run_id(run_id), after)

    def iter_history(self, run_id: str) -> Iterator[Summary]:
        return iter_history(self._log, check_run_id(run_id))

    def list(self) -> builtins.list[str]:
        return sorted(listing(self._log, lambda run: run.run_id)[0])

    def _runs(self, which: RunFilter, limit: int, after: int | None) -> builtins.list[Summary]:
        return listing(self._log, RunRecord.summary, self._resolved(which), limit, after, self.owner)[0]

    def _loads(self, **which: Unpack[Filters]) -> Iterator[tuple[str, Callable[[], State]]]:
        after = None
        while page := listing(self._log, lambda run: run, filtered(which), _PAGE, after)[0]:
            for run in page:
                yield run.run_id, partial(load, self._log, run.run_id, listed=run)
            after = page[-1].number

    def count(self, **which: Unpack[Filters]) -> int:
        resolved = self._resolved(filtered(which), is_counted=True)
        needs_owners = resolved.owned is not None and (resolved.owned_ids is None or resolved.parent is not None)
        found = None if needs_owners else self._table.count(resolved)
        return super().count(**which) if found is None else found

    def _due(self, graph: str, limit: int) -> builtins.list[tuple[int, str]]:
        return self._table.due(graph, limit)

    def _now_ns(self) -> int:
        return self._table.now_ns()

    def _resolved(self, which: RunFilter, *, is_counted: bool = False) -> RunFilter:
        """Add the time, and the ids of owned runs, where one query for all runs is faster than one for each."""
        if which.labels and self.cipher is not None and self.cipher.hides_labels:
            raise ConfigError("labels", dict(which.labels), "none: encrypt_labels=True leaves no labels to search by")
        if which.overdue is not None:
            which = attrs.evolve(which, now_ns=self._table.now_ns())
        if which.owned is None or not (which.owned or is_counted or self._is_server):
            return which
        return attrs.evolve(which, owned_ids=self._table.owners.owned_ids(self._table))

    def under_way(self, run_id: str) -> UnderWay:
        with unknown_shown():  # it is for people
            return super().under_way(run_id)

    def verify(self, heads: Mapping[str, str] | None = None) -> Verified:
        """Read everything in the store and report damage, as `CheckpointStore.verify`.

        Args:
            heads: The result of an earlier `heads`. A run that is gone, or older than then, is damaged.

        Raises:
            ConfigError: these are no heads.
        """
        return verify(self._log, {} if heads is None else heads)

    def heads(self) -> dict[str, str]:
        """Return a digest of the newest checkpoint of each run, nested ones included, by run id.

        Keep them where a thief cannot write: `verify(heads)` notices that an older copy of the store was put back.
        """
        return heads(self._log)

    def rekey(self, *, plain: bool = True) -> Rekeyed:
        """Sign everything again with the key of `sign_with`, and encrypt it with the first of `encrypt_with`, so that
        former keys can be removed.

        Everything is checked first: what has no valid signature of one of the keys, or cannot be decrypted with any, is
        left as it is. Runs that are at work are left too. The report names both; another call does the rest.

        Args:
            plain: Encrypt what is not encrypted as well. The report names the runs. They may be planted: use False in a
                store in which all is encrypted.

        Raises:
            ConfigError: the store was opened without keys.
        """
        if not self._log.sealer.is_keyed:
            raise ConfigError("checkpoint.options.sign_with", None, "the key to sign with, or one in encrypt_with")
        if not isinstance(plain, bool):
            raise ConfigError("plain", plain, "True or False")
        with plain_accepted() if plain else nullcontext(set[str]()) as plain_runs:
            report = rekey(self, self._log)
        return attrs.evolve(report, plain=tuple(sorted(plain_runs)))

    def _change_token(self, run_id: str | None) -> str:
        if run_id is None:
            return self._table.change_token()
        run = self._table.run(check_run_id(run_id))
        return "" if run is None else f"{run.incarnation.hex()}-{run.version}"

    # ------------------------------------------------------------------ JSON lines

    def export_run(self, run_id: str, *, encrypted: bool = False) -> Iterator[str]:
        """Yield a run as lines of JSON for `import_runs`, with its kept history and all nested runs. Values of types
        that are not registered here are written in their stored form. Keys whose values the option `redact` shows
        otherwise are left out.

        Args:
            run_id: The run.
            encrypted: Encrypt the lines with the key of this store. A store with that key imports them.

        Raises:
            CheckpointNotFoundError, CheckpointCorruptError, FormatError: as `load`.
            ConfigError: the store has no key.
        """
        lines = exported(self._log, check_run_id(run_id))
        if encrypted:
            return encrypted_lines(self._log, run_id, lines)
        return lines if self.shown is None else lines_as(lines, self.shown)

    def import_runs(self, lines: Iterable[str]) -> builtins.list[str]:
        """Create runs from lines of `export_run`, each completely or not at all; return their ids.

        Runs that are there just as in the lines are left alone, so an interrupted import can be repeated.

        Raises:
            FormatError: the lines are not from `export_run`.
            RunExistsError, RunBusyError: another run with one of the ids exists. The runs before it have been created.
        """
        return imported(self, self._log, lines)

    # ------------------------------------------------------------------ nested runs

    keeps_parts = True

    def append(self, run_id: str, entries: Sequence[Entry]) -> builtins.list[Entry]:
        if not entries:
            return []
        if are_of_inbox(entries):
            return append_to_inbox(self._log, run_id, entries)
        if owner_here(self, run_id) is not None:
            return append_to_journal(self._log, run_id, entries)
        with owned(self, check_run_id(run_id)):
            return append_to_journal(self._log, run_id, entries)

    def entries(
        self, run_id: str, *, step: int | None = None, kinds: Collection[str] | None = None, after: int = 0
    ) -> builtins.list[Entry]:
        check_kinds(kinds)
        return entries(self._log, check_run_id(run_id), step, kinds, after)

    def _entry_named(self, run_id: str, kind: str, name: str) -> Entry | None:
        run = self._log.find(run_id)
        return None if run is None else entry_named(self._log, run, kind, name)

    def load_parts(self, run_id: str, step: int, node: str) -> KeptParts:
        kept = super().load_parts(run_id, step, node)
        if kept:
            return kept
        older = nested.load_parts(self._log, run_id, step, node)
        if older and owner_here(self, run_id) is not None:  # before new ones are: they are never in two places
            self.save_parts(run_id, [Part(step, node, label, older[label], older.made_of[label]) for label in older])
        return older

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        with owned(self, check_run_id(run_id)):
            nested.drop_nested(self._log, run_id, step, newer_parts=newer_too)
            cut_journal(self._log, run_id, MAX_STEP if newer_too else step, lasting_kinds(newer_too))

    # ------------------------------------------------------------------ time travel and deletion

    def _roll_back(self, run_id: str, step: int, revision: int | None, by: str | None) -> State:
        state = nested.rollback(self._log, run_id, step, revision, by)
        self._table.erase()
        return state

    def _fork(self, run_id: str, new_run_id: str, step: int | None, revision: int | None) -> State:
        return nested.fork(self._log, run_id, new_run_id, step, revision)

    def delete(self, run_id: str, *, take_over: bool = False) -> None:
        try:
            check_run_id(run_id)
        except InvalidRunIdError:
            if type(run_id) is not str or not self._table.remove_damaged(run_id):
                raise
            self._log.forget_all(run_id)
        else:
            with owned(self, run_id, take_over=take_over):
                self._log.remove(run_id)
        self._table.erase()

    def _redact(self, run_id: str, key: str, by: str | None) -> None:
        redact_run(self._log, run_id, key, by)
        self._table.erase(everywhere=True)

    def _discard(self, run_id: str) -> None:
        with owned(self, run_id):
            self._log.remove(run_id)

    def prune(self) -> Pruned:
        return prune(self, self._log)
