"""Plant bugs in a copy of the package, and show that the tests catch each of them: ``make mutants``.

A mutant is one change of one place. It is caught if a test that passes on the untouched copy fails on the changed one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]


@attrs.frozen
class Mutant:
    """A bug to plant.

    Attributes:
        title: What is broken.
        file: Where, below the package.
        old: What stands there.
        new: What is put in its place.
        tests: What pytest is to run; the whole suite would take too long.
    """

    title: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


STORES = "tests/stores/test_stores.py"
MUTANTS = (
    Mutant(
        "a prune removes a run that was taken over meanwhile",
        "stores/_rows/sqlite_table.py",
        "if not hold.is_lost and hold.fence == fences.get(hold.run_id, 0)]",
        "if not hold.is_lost]",
        ("tests/stores/test_prune.py -k taken_over",),
    ),
    Mutant(
        "a prune leaves what is nested in the runs that it removes",
        "stores/_rows/sqlite_table.py",
        "        self._delete_rows([*zip(found.values()), *nested])\n",
        "        self._delete_rows([*zip(found.values())])\n",
        ("tests/stores/test_prune.py -k nested",),
    ),
    Mutant(
        "the end of a long history is not missed",
        "stores/_rows/gaps.py",
        "    if newest is None or newest.seal != run.tip:\n",
        "    if newest is None:\n",
        ("tests/stores/test_pages.py",),
    ),
    Mutant(
        "a checkpoint is lost between two pages",
        "stores/_rows/gaps.py",
        "                check_gapless(run, [newest, *rows])\n",
        "                check_gapless(run, rows)\n",
        ("tests/stores/test_pages.py",),
    ),
    Mutant(
        "a run that was taken over once is looked for where it was locked before",
        "_owners/file_holds.py",
        "        byte = _byte(run_id, fence)\n",
        "        byte = _byte(run_id, 0)\n",
        ("tests/stores/test_filters.py -k Owned",),
    ),
    Mutant(
        "async nodes are in no span",
        "_engine/placing.py",
        "    if kind is Await:\n",
        "    if kind is None:\n",
        ("tests/test_opentelemetry.py -k users_do",),
    ),
    Mutant(
        "items are in the span of the caller",
        "nodes/_parts/pools.py",
        "            self._context = contextvars.copy_context()  # with what is put around the node",
        "            pass",
        ("tests/test_opentelemetry.py -k users_do",),
    ),
    Mutant(
        "the span of a node stays open over a pause",
        "observers/opentelemetry.py",
        "        if run.node is not None:\n            self._end_span_of_node(run, at)\n        graph, status",
        "        graph, status",
        ("tests/test_opentelemetry.py -k pause",),
    ),
    Mutant(
        "an error names the node before the one that failed",
        "_engine/announce.py",
        "        node, info = error.node_name, error.state.error",
        "        node, info = state.checkpoint_node, error.state.error",
        ("tests/test_event_tree.py -k node_that_failed",),
    ),
    Mutant(
        "who looks from another process sees the node of an earlier owner",
        "_owners/byte_locks.py",
        "        if found[0] != byte or owner.since is None or since < owner.since:",
        "        if found[0] is None:",
        ("tests/test_owners.py -k earlier_owner",),
    ),
    Mutant(
        "items that were found done count as quick work",
        "observers/_watched.py",
        "made, seconds = self.done - self.found,",
        "made, seconds = self.done,",
        ("tests/test_progress.py -k items",),
    ),
    Mutant(
        "what is saved again is signed unseen",
        "stores/_rows/encoder.py",
        "        self._sealer.check(state.run_id, [saved], previous.incarnation, previous.before)\n",
        "",
        ("tests/stores/test_forgery.py",),
    ),
    Mutant(
        "whoever looks has an index made",
        "stores/_files/reading.py",
        "    return not log.exists() or",
        "    return False and",
        ("tests/cli/test_looking.py -k looking_changes_no_file",),
    ),
    Mutant(
        "a file that was read as fixed is read as it was for ever",
        "stores/_files/reading.py",
        "        return self.is_fixed and not self._files.are_there",
        "        return False",
        ("tests/cli/test_looking.py -k read_as_it_is_now",),
    ),
    Mutant(
        "a value writes to the terminal",
        "_text/screen.py",
        '    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)',
        "    return text",
        ("tests/cli/test_looking.py -k hostile",),
    ),
    Mutant(
        "something is lost without a question where nobody can be asked",
        "cli/_changing.py",
        '        raise Failure(Exit.USAGE, f"{question} There',
        '        return\n        raise Failure(Exit.USAGE, f"{question} There',
        ("tests/cli/test_changing.py -k forgotten",),
    ),
    Mutant(
        "verify reads what stands in columns only",
        "stores/_rows/verifying.py",
        "                log.encoder.state(run.run_id, chain, run.incarnation)",
        "                pass",
        ("tests/cli/test_watching.py -k doctor_says",),
    ),
    Mutant(
        "what this handle has saved itself has not changed",
        "stores/_rows/sqlite_table.py",
        '        return f"{opened}-{version}-{made}"',
        '        return f"{opened}-{version}"',
        ("tests/stores/test_stores.py -k each_change_is_noticed",),
    ),
    Mutant(
        "a class that is not known is told as a dict",
        "stores/_codec/value_encoder.py",
        "self.tagged(OBJECT, [name, version, self._dict(values, depth)])\n        return",
        "self._dict(values, depth)\n        return",
        ("tests/stores/test_opaque.py",),
    ),
    Mutant(
        "what is unknown is shown to those who did not ask",
        "stores/_codec/opaque.py",
        "        _is_shown.reset(token)",
        "        pass",
        ("tests/stores/test_opaque.py -k refused",),
    ),
    Mutant(
        "an import leaves out what is nested",
        "stores/_rows/transfer.py",
        "    return [outer, *(attrs.evolve(batch, outer=incarnation) for batch in nested)]",
        "    return [outer]",
        ("tests/stores/test_transfer.py",),
    ),
    Mutant(
        "lines without their beginning are a run",
        "stores/_rows/transfer.py",
        "    if outer.run.run_id != run_id:",
        "    if outer.run.run_id is None:",
        ("tests/stores/test_transfer.py -k missing",),
    ),
    Mutant(
        "a cancelled run does not say by whom",
        "stores/_defaults.py",
        "            store.save(evolve(told(state, by=by), status",
        "            store.save(evolve(told(state), status",
        ("tests/stores/test_stores.py -k cancelled_at_once",),
    ),
    Mutant(
        "a worker goes on when it is told to stop",
        "cli/_worker.py",
        "            self._is_over.set()\n",
        "            pass\n",
        ("tests/cli/test_watching.py -k stops_when",),
    ),
    Mutant(
        "heads are not checked",
        "stores/_rows/runs.py",
        "        self._sealer.check_run(run, run_id)\n        return run if",
        "        return run if",
        ("tests/stores/test_forgery.py",),
    ),
    Mutant(
        "a run is given out under another id",
        "stores/_rows/runs.py",
        "check_run(run, run_id)",
        "check_run(run)",
        ("tests/stores/test_forgery.py",),
    ),
    Mutant(
        "what was planted since the files were looked at is used",
        "stores/_files/sqlite_files.py",
        "            check_side_files(file)\n",
        "            pass\n",
        ("tests/stores/test_files.py",),
    ),
    Mutant(
        "a hard link beside a database is written over",
        "stores/_files/ownership.py",
        "            _check_names(other)",
        "            pass",
        ("tests/stores/test_files.py",),
    ),
    Mutant(
        "an error shows the checkpoint of a config whole",
        "config/graph.py",
        'hidden="checkpoint"',
        'hidden=""',
        ("tests/test_config.py",),
    ),
    Mutant(
        "a run that is saved again stays signed with a former key",
        "stores/_rows/saving.py",
        " and not log.sealer.takes_former:",
        ":",
        ("tests/test_ways_out.py",),
    ),
    Mutant(
        "a chain may be cut",
        "stores/_rows/run_log.py",
        "        if row.seal == run.tip:\n            return True\n        if",
        "        if True:\n            return True\n        if",
        ("tests/stores/test_forgery.py", "tests/stores/test_damage.py"),
    ),
    Mutant(
        "parts of a run that was deleted are taken for those of another",
        "stores/_rows/runs.py",
        "        return nested.incarnation == (",
        "        return nested.incarnation != b'' or (",
        ("tests/stores/test_forgery.py",),
    ),
    Mutant(
        "a revision is overwritten",
        "stores/_rows/run_log.py",
        "return at.sequence + 1, at.revision + 1",
        "return at.sequence, at.revision",
        ("tests/stores/test_revisions.py",),
    ),
    Mutant(
        "a rollback forgets the story",
        "stores/_memory/history.py",
        "run.kept[len(run.kept) if run.policy.keeps_all else place :]",
        "run.kept[place:]",
        ("tests/stores/test_revisions.py",),
    ),
    Mutant(
        "rows of another store are taken",
        "stores/_rows/integrity.py",
        "        return _pack([self._store_id, run_id, incarnation, *parts, before, pause])",
        "        return _pack([run_id, incarnation, *parts, before, pause])",
        ("tests/stores/test_forgery.py", "tests/stores/test_golden.py"),
    ),
    Mutant(
        "several saves go by what is remembered of a policy",
        "stores/_rows/saving.py",
        "    if following is None or (known is None",
        "    save(log, newest)\n    return True\n    if following is None or (known is None",
        ("tests/stores/test_two_handles.py",),
    ),
    Mutant(
        "commits are not synced",
        "stores/_files/sqlite_files.py",
        '"synchronous = FULL"',
        '"synchronous = OFF"',
        ("tests/stores/test_sqlite.py", "tests/proof -k power_cuts"),
    ),
    Mutant(
        "the checksum is not compared",
        "stores/_rows/integrity.py",
        "if hmac.compare_digest(",
        "if True or hmac.compare_digest(",
        ("tests/stores",),
    ),
    Mutant(
        "the newest checkpoint is the one with the latest time",
        "stores/_rows/sql_schema.py",
        "ORDER BY id DESC LIMIT 1",
        "ORDER BY timestamp_ns DESC LIMIT 1",
        (STORES,),
    ),
    Mutant(
        "retention removes rows that others build on",
        "stores/_rows/run_log.py",
        "        return min([row.base for row in older], default=snapshot.sequence) if is_sure else 0",
        "        return older[0].sequence if older else snapshot.sequence",
        ("tests/stores/test_damage.py",),
    ),
    Mutant(
        "retention removes rows by what damaged ones say",
        "stores/_rows/run_log.py",
        "            is_sure = self._are_as_sealed(run, older)",
        "            is_sure = True",
        ("tests/stores/test_damage.py",),
    ),
    Mutant(
        "an error of the background thread is swallowed",
        "stores/write_behind.py",
        "the thread of the run\n                self._error = error",
        "the thread of the run\n                self._error = None",
        ("tests/stores/test_background.py",),
    ),
    Mutant(
        "an interrupt ends the wait for saves that are being made",
        "stores/write_behind.py",
        "        self._save_gathered()\n        with self._lock:\n            self._raise_error()",
        "        with self._lock:\n            self._raise_error()",
        ("tests/stores/test_background.py -k interrupt",),
    ),
    Mutant(
        "a run that is begun by others is saved as if it were new",
        "stores/_rows/saving.py",
        " or (known is None and following[0] is not None):",
        ":",
        ("tests/stores/test_two_handles.py", "tests/stores/test_writer.py"),
    ),
    Mutant(
        "what comes while its writer saves waits until the run ends",
        "stores/writer.py",
        "        if queued.has_queued:  # more has come meanwhile\n            self.call(queued)\n",
        "",
        ("tests/stores/test_writer.py",),
    ),
    Mutant(
        "a forked child waits for the threads of its parent",
        "stores/write_behind.py",
        "        behind.renew()",
        "        pass",
        ("tests/stores/test_writer.py",),
    ),
    Mutant(
        "a run that is too far ahead waits for a writer that is not there",
        "stores/write_behind.py",
        "and self._error is None:\n            self._save_gathered()",
        "and self._error is None:\n            break",
        ("tests/stores/test_writer.py",),
    ),
    Mutant(
        "an interrupt at the start of a thread passes for a lack of threads",
        "_util/dropped.py",
        "        if isinstance(error.__context__, KeyboardInterrupt):\n",
        "        if False:\n",
        ("tests/stores/test_background.py -k interrupt",),
    ),
    Mutant(
        "whoever writes last wins",
        "stores/_rows/sql_schema.py",
        "WHERE run_id = ? AND version = ?",
        "WHERE run_id = ? AND version >= ? - 1000000",
        ("tests/stores/test_two_handles.py",),
    ),
    Mutant(
        "a list that changed in its middle is taken for one that grew",
        "stores/_codec/delta.py",
        " and all(map(is_, old, new))",
        "",
        (STORES, "tests/stores/test_rows.py"),
    ),
    Mutant(
        "an object that changed is taken for the same",
        "stores/_codec/delta.py",
        " not in SETTLED and not is_settled(value):\n",
        " not in SETTLED and not is_settled(value) and value is not previous:\n",
        (STORES,),
    ),
    Mutant(
        "a saved step may change its data",
        "stores/_checks.py",
        "    if not same_data:\n",
        "    if False:\n",
        (STORES,),
    ),
    Mutant(
        "the last completed State is not saved when a node raises",
        "_engine/rescue.py",
        "    if run.plan.saves and state is not run.saved and not isinstance(error, _SAVE_ERRORS):\n",
        "    if False:\n",
        ("tests/test_engine.py",),
    ),
    Mutant(
        "an answer goes to each part that waits under its key",
        "_engine/step.py",
        "woken is not None and woken.id == pause.id and",
        "woken is not None and",
        ("tests/test_graph_parts.py",),
    ),
    Mutant(
        "a part that is made of something else goes on with what it had",
        "_engine/step.py",
        'self._digest_of(made_of) if part else ""',
        '""',
        ("tests/test_graph_parts.py",),
    ),
    Mutant(
        "updates are laid over the work of a nested run again",
        "_engine/subgraphs.py",
        "yield from step.stored((Amend, run.services.amend, run.state))",
        "yield from ()",
        ("tests/test_nesting.py",),
    ),
    Mutant(
        "an approval outlives a rollback",
        "stores/_defaults.py",
        "    back = asking_again(state)\n    back = back",
        "    back = state\n    back = back",
        ("tests/test_pauses.py",),
    ),
    Mutant(
        "resume runs the completed node again",
        "_engine/resume.py",
        "return run.plan.stages.get(saved.checkpoint_node)",
        "return None",
        ("tests/test_resume.py",),
    ),
    Mutant(
        "steps are counted from the beginning after a resume",
        "_engine/loop.py",
        "if interval == 1 or (interval and state.step % interval == 0):",
        "if interval == 1 or (interval and (plan.max_iterations - left) % interval == 0):",
        ("tests/test_runs.py",),
    ),
    Mutant(
        "a follower is not told of the leader's error",
        "stores/_rows/access.py",
        "[_copy(error) for _ in writes]",
        "[True for _ in writes]",
        ("tests/stores/test_commit.py",),
    ),
    Mutant(
        "updates of a resume are not durable before the next node",
        "_engine/resume.py",
        "    if is_same and not updates:\n",
        "    if True:\n",
        ("tests/test_resume.py",),
    ),
    Mutant(
        "parts are joined whatever they were made of",
        "_engine/step.py",
        "if digest and digest == loaded.made_of[label]]",
        "]",
        ("tests/test_parts_made_of.py",),
    ),
    Mutant(
        "parts of a generation that was rolled back are joined",
        "_engine/step.py",
        '{"generation": self.state.generation}',
        "{}",
        ("tests/test_parts_made_of.py",),
    ),
    Mutant(
        "a later answer to a pause is an update",
        "_engine/answering.py",
        "closed := sorted(_answered(saved) & updates.keys() - {one.response_param for one in pauses})",
        "closed := []",
        ("tests/test_answers.py",),
    ),
    Mutant(
        "an answer to an older pause answers the newer one",
        "_engine/answering.py",
        "pause_id not in [one.id for one in pauses]",
        "pause is None",
        ("tests/test_answers.py",),
    ),
    Mutant(
        "the id of a pause leaves out what was shown",
        "_engine/pauses.py",
        'digest({**asked, "value": pause.value}) or run.plan.digest(asked)',
        "digest(asked)",
        ("tests/test_answers.py",),
    ),
    Mutant(
        "parts stay when the step that joins them is saved",
        "_engine/loop.py",
        "            if run.has_joined_parts:\n                yield from drop_joined_parts(run)\n        elif",
        "        elif",
        ("tests/test_parts.py", "tests/test_left_behind.py"),
    ),
    Mutant(
        "a run that was deleted overwrites the one that took its id",
        "stores/_rows/saving.py",
        "    log.runs.check_known(run)\n",
        "",
        ("tests/stores/test_two_handles.py",),
    ),
    Mutant(
        "a scope of anyio cancels a generator that is at work again and again",
        "nodes/_generators/task_feed.py",
        "                await outlast(self._answered, hands_on_to=task, cancelled=cancelled)\n",
        "",
        ("tests/test_generators.py",),
    ),
    Mutant(
        "a second cancellation ends the wait for what must not be cut off",
        "_util/cancellation.py",
        "        while not work.done() and loop.time() < until:\n",
        "        if not work.done():\n",
        ("tests/test_cancellations.py",),
    ),
    Mutant(
        "a scope of anyio cancels in every turn of the loop",
        "_util/cancellation.py",
        'if "anyio" not in sys.modules:',
        "if True:",
        ("tests/test_cancellations.py",),
    ),
    Mutant(
        "a scope of anyio cancels a run that is iterated over twice",
        "_util/cancellation.py",
        "    cancelled = cancelled or await wait()\n    if",
        "    cancelled = await wait()\n    if",
        ("tests/test_cancellations.py -k anyio",),
    ),
    Mutant(
        "a run whose iteration was left waits for somebody who looks",
        "_drivers/streams.py",
        "        if not self.is_left:\n            self.seen.clear()",
        "        if True:\n            self.seen.clear()",
        ("tests/test_cancellations.py",),
    ),
    Mutant(
        "a CancelledError of a node passes for a cancellation of the run",
        "_drivers/aio.py",
        "return error if self._is_cancelled() else failure_of(error)",
        "return error",
        ("tests/test_cancelled_nodes.py",),
    ),
    Mutant(
        "a failing task group of a node passes for a cancellation of the run",
        "_drivers/aio.py",
        "_GROUPS_LEAVE_CANCELLATIONS = sys.version_info < (3, 13)",
        "_GROUPS_LEAVE_CANCELLATIONS = False",
        ("tests/test_cancellations.py",),  # with a Python before 3.13
    ),
    Mutant(
        "a failure hides a cancellation",
        "_drivers/aio.py",
        "not isinstance(end, Exception):",
        "not isinstance(end, StopIteration):",
        ("tests/test_cancellations.py",),
    ),
    Mutant(
        "parts that were cancelled together with the run have failed",
        "nodes/_parts/pools.py",
        "for task, outcome in self._ended if not task.cancelled()]",
        "for task, outcome in self._ended]",
        ("tests/test_cancellations.py",),
    ),
    Mutant(
        "a part that cancels itself has no outcome",
        "nodes/_parts/pools.py",
        "        self._ended.append((task, outcome))\n",
        "        if not task.cancelled():\n            self._ended.append((task, outcome))\n",
        ("tests/test_cancelled_nodes.py",),
    ),
    Mutant(
        "slow nodes keep the store waiting",
        "_drivers/aio.py",
        'self._run, self._asks, self._store = task, threads.of(getattr(store, "behind_of", store)), store',
        "self._run, self._asks, self._store = task, threads.nodes, store",
        ("tests/test_threads.py",),
    ),
    Mutant(
        "a cancellation cuts off what a thread does",
        "_drivers/aio.py",
        "rest = work.rest or work",
        "rest = work",
        ("tests/test_threads.py",),
    ),
    Mutant(
        "a save that was made together with others hears of no cancellation",
        "_drivers/together.py",
        "        return _raised_by(partial(io.heed_cancel, state))",
        "        return None",
        ("tests/test_crowds.py",),
    ),
    Mutant(
        "what is to be saved with a State is lost if it cannot be saved together with others",
        "_drivers/together.py",
        "    io.before = before\n",
        "",
        ("tests/test_crowds.py",),
    ),
    Mutant(
        "a save is taken for made that could not be made together with others",
        "stores/_rows/together.py",
        "(unsaved is None or _unsaved(log, *unsaved)))",
        "True)",
        ("tests/test_crowds.py",),
    ),
    Mutant(
        "a run that was saved with others does not hear that the store has lost it",
        "stores/_rows/together.py",
        "        return lost\n",
        "        return False\n",
        ("tests/test_crowds.py",),
    ),
    Mutant(
        "a run that a stranger has locked keeps the saves behind other runs waiting",
        "stores/writer.py",
        "self._save_apart(queued) if is_server else self._save_alone(queued)",
        "self._save_alone(queued)",
        ("tests/stores/test_postgres.py",),
    ),
    Mutant(
        "a save that is made again is another revision",
        "stores/_rows/saving.py",
        "    if log.keeps_all(run) and not is_again:\n",
        "    if log.keeps_all(run):\n",
        ("tests/stores/test_revisions.py",),
    ),
    Mutant(
        "a State that is queued twice is another revision",
        "stores/_rows/saving.py",
        "                if same_data and are_of_one_save(before, state):\n                    continue\n",
        "",
        ("tests/stores/test_revisions.py",),
    ),
    Mutant(
        "a thread that an interrupt has kept from starting is waited for",
        "_drivers/threads.py",
        "if thread.is_alive():  # and not one that such an interrupt has kept from starting",
        "if True:",
        ("tests/test_threads.py",),
    ),
    Mutant(
        "what is saved just before another thread closes the store is called lost",
        "stores/_files/sqlite_files.py",
        " and not (table and table.closed)",
        "",
        ("tests/stores/test_files.py",),
    ),
    Mutant(
        "a run that never waits keeps the event loop for itself",
        "_drivers/aio.py",
        "return time.monotonic() - self._others_wait_since > _TURN",
        "return False",
        ("tests/test_rides.py",),
    ),
    Mutant(
        "a run of sync nodes hears of a cancellation at its end",
        "_drivers/rides.py",
        "(kind is RunNode and self._is_to_stop())",
        "False",
        ("tests/test_rides.py",),
    ),
    Mutant(
        "a thread goes on with a run that somebody else ends",
        "_drivers/rides.py",
        "                if self._is_left:",
        "                if False:",
        ("tests/test_rides.py",),
    ),
    Mutant(
        "a node that cancels its task has the next one fail in its place",
        "_drivers/one_task.py",
        "            if task.cancelling():\n                return answer",
        "            if False:\n                return answer",
        ("tests/test_one_task.py",),
    ),
    Mutant(
        "an interrupt cuts off what is awaited",
        "_drivers/one_task.py",
        "        if self._interrupts == 1 and",
        "        if self._interrupts == 0 and",
        ("tests/test_one_task.py",),
    ),
    Mutant(
        "what a sync node sets in its context is seen by the next",
        "_drivers/rides.py",
        "copy().run(call, argument) if kind is RunNode else call(argument)",
        "call(argument)",
        ("tests/test_rides.py",),
    ),
    Mutant(
        "an event loop waits for runs of the memory store that were dropped",
        "_drivers/aio.py",
        "        if reaper.has_dropped:\n            return _LATER\n",
        "",
        ("tests/test_rides.py",),
    ),
    Mutant(
        "a process that has died is waited for as long as its connection is open",
        "nodes/_parts/processes.py",
        " in ready or worker.is_dead]",
        " in ready]",
        ("tests/test_pools.py",),
    ),
    Mutant(
        "an answer answers twice",
        "nodes/interrupt.py",
        "            step.take_answers([key])\n",
        "",
        ("tests/test_pauses.py",),
    ),
    Mutant(
        "a pause is not saved",
        "_engine/pauses.py",
        "    yield from save(run, (Save, run.services.save, state), state)\n"
        "    yield from flush(run, state)\n    yield from emit(run, EventType.GRAPH_PAUSE",
        "    yield from flush(run, state)\n    yield from emit(run, EventType.GRAPH_PAUSE",
        ("tests/test_pauses.py",),
    ),
    Mutant(
        "a pause has no seal",
        "stores/_rows/integrity.py",
        "*parts, before, pause])",
        "*parts, before])",
        ("tests/stores",),
    ),
    Mutant(
        "runs within runs are shown",
        "stores/_rows/sql_filters.py",
        "\"run_id NOT LIKE '%/#%'\" if which.parent is None",
        '"policy IS NOT NULL" if which.parent is None',
        (STORES,),
    ),
    Mutant(
        "a copy is made without the parts of the step that it stands before",
        "stores/_rows/copies.py",
        " if with_nested else ():\n",
        " if False else ():\n",
        (STORES,),
    ),
    Mutant(
        "a rollback leaves the parts of later steps",
        "stores/_rows/store.py",
        "cut_above=cut_above, cut_nested=not keeps_all, cut_parts=keeps_all)",
        "cut_above=cut_above)",
        (STORES,),
    ),
    Mutant(
        "what stands under an id that no run can have cannot be deleted",
        "stores/_rows/store.py",
        "if type(run_id) is not str or not self._log.table.remove_damaged(run_id):",
        "if True:",
        ("tests/stores/test_damage.py",),
    ),
    Mutant(
        "a cursor may be of any size",
        "stores/_checks.py",
        "    if is_number and len(cursor) <= len(str(_LARGEST)) and int(cursor) <= _LARGEST:",
        "    if is_number:",
        ("tests/stores/test_stores.py",),
    ),
    Mutant(
        "a URI is taken for the name of a file",
        "stores/_files/config_paths.py",
        'if text.startswith("file:"):',
        "if False:",
        ("tests/stores/test_stores.py",),
    ),
    Mutant(
        "a connection that was never opened complains when it goes",
        "stores/_files/safe_diskcache.py",
        "        except Exception:  # noqa: BLE001, S110\n            pass\n",
        "        except ZeroDivisionError:\n            pass\n",
        ("tests/stores/test_disk.py -k LetGo",),
    ),
    Mutant(
        "what others write meanwhile is taken for damage by a prune",
        "stores/_rows/pruning.py",
        "            if not _went_on(log, run):",
        "            if True:",
        ("tests/stores/test_two_handles.py",),
    ),
    Mutant(
        "what others write meanwhile is taken for damage by a fork",
        "stores/_rows/copies.py",
        "        if log.is_stale(run):\n",
        "        if False:\n",
        ("tests/stores/test_two_handles.py",),
    ),
    Mutant(
        "what is within a deleted run stays",
        "stores/_rows/sqlite_table.py",
        "        if found or version is None:\n            self._delete_nested(run_id)\n",
        "",
        (STORES,),
    ),
    Mutant(
        "what is within a run is saved for the run that has taken its id",
        "stores/_rows/runs.py",
        "        if known not in (None, incarnation):\n            raise",
        "        if False:\n            raise",
        ("tests/stores/test_two_handles.py",),
    ),
    Mutant(
        "a write does not look whether the run around is still there",
        "stores/_rows/sqlite_table.py",
        "        if batch.outer is not None and not self._has_outer_run(batch):\n            return False\n",
        "",
        ("tests/stores/test_two_handles.py",),
    ),
    Mutant(
        "a rollback that was not made has dropped the parts",
        "stores/_rows/store.py",
        "        self._log.write_or_raise(cut)",
        "        nested.drop(self._log, run_id, 2**32, newer_parts=True)\n        self._log.write_or_raise(cut)",
        ("tests/stores/test_two_handles.py",),
    ),
    Mutant(
        "a lost checkpoint is one that never was",
        "stores/_rows/run_log.py",
        "            self.check_absent(run, step if at == _NOWHERE else at)\n",
        "            pass\n",
        ("tests/stores/test_damage.py",),
    ),
    Mutant(
        "a load that is overtaken by a write is taken for the newest",
        "stores/_rows/run_log.py",
        "            self.known.remember(run, self.encoder.base_of(state, rows, run.incarnation))",
        "            newest = self.table.run(run.run_id) or run\n"
        "            self.known.remember(newest, self.encoder.base_of(state, rows, run.incarnation))",
        ("tests/stores/test_damage.py",),
    ),
    Mutant(
        "a nested run that is visited again takes the id of the first",
        "_values/ids.py",
        'f"{run_id}{NESTED}{step}{again}/{escaped(node)}"',
        'f"{run_id}{NESTED}1{again}/{escaped(node)}"',
        ("tests/test_idempotency.py",),
    ),
    Mutant(
        "names run together in idempotency keys",
        "_values/ids.py",
        'quote(name, safe="")',
        'quote(name, safe="/")',
        ("tests/test_idempotency.py",),
    ),
    Mutant(
        "the key of a nested step does not tell the outermost graph",
        "nodes/context.py",
        "escaped(self._outermost or self.graph)",
        "escaped(self.graph)",
        ("tests/test_idempotency.py",),
    ),
    Mutant(
        "a long idempotency key is cut off",
        "nodes/context.py",
        'f"{key[: LONGEST_KEY - len(digest) - 2]}##{digest}"',
        "key[:LONGEST_KEY]",
        ("tests/test_idempotency.py",),
    ),
    Mutant(
        "somebody can give a run the id of a nested one",
        "_values/ids.py",
        "    if NESTED in check_run_id(run_id):\n",
        "    if NESTED in check_run_id(run_id) and False:\n",
        ("tests/test_nesting.py",),
    ),
    Mutant(
        "a generator has the context of whoever asks for its next chunk",
        "nodes/_generators/feeds.py",
        "self._context.run(self._advance) if",
        "self._advance() if",
        ("tests/test_generators.py",),
    ),
    Mutant(
        "a generator goes on in whatever thread its driver has for it",
        "nodes/_generators/feeds.py",
        "= threading.get_ident() == self._home\n",
        "= True\n",
        ("tests/test_generators.py",),
    ),
    Mutant(
        "a generator that is dropped is closed in the context of whoever drops it",
        "nodes/_generators/feeds.py",
        "                self._context.run(self._generator.close)\n            else",
        "                self._generator.close()\n            else",
        ("tests/test_dropped.py -k closed_where",),
    ),
    Mutant(
        "parts go on when their run was dropped",
        "nodes/_parts/run.py",
        "        pool.halt()\n        raise\n",
        "        raise\n",
        ("tests/test_dropped.py -k parts_that_are_being_done",),
    ),
    Mutant(
        "a generator that was left at work is never closed",
        "nodes/_generators/feeds.py",
        "        closed = self._thread.begin(self._generator.close)\n",
        "        closed = self._thread.begin(lambda: None)\n",
        ("tests/test_generators.py",),
    ),
    Mutant(
        "what cancels a generator while it has yielded is lost",
        "nodes/_generators/task_feed.py",
        "return anext(self._generator) if cancelled is None else self._generator.athrow(cancelled)",
        "return anext(self._generator)",
        ("tests/test_generators.py -k somebody_looks",),
    ),
    Mutant(
        "a node that is cut off leaves its generator at work",
        "nodes/_generators/task_feed.py",
        "                task.cancel(*cancelled.args)\n",
        "                raise\n",
        ("tests/test_generators.py",),
    ),
    Mutant(
        "a task group that is left early is a failure",
        "nodes/_generators/task_feed.py",
        "        return error.split(_PLAIN_ENDS)[1]\n",
        "        return error\n",
        ("tests/test_generators.py",),
    ),
    Mutant(
        "a cancellation does not reach an async generator in a graph with a schema",
        "nodes/schema_calls.py",
        "                    step = generator.athrow(error)\n",
        "                    raise\n",
        ("tests/test_generators.py -k somebody_looks",),
    ),
    Mutant(
        "an item finds what another has set",
        "nodes/_parts/pools.py",
        "self._context.copy().run(_outcome, job)",
        "_outcome(job)",
        ("tests/test_parts.py -k Apart",),
    ),
    Mutant(
        "the policy of a run that has begun is remembered for ever",
        "stores/_memory/held.py",
        "        self.policies.pop(run_id, None)\n        while",
        "        while",
        ("tests/test_left_behind.py -k forgets",),
    ),
    Mutant(
        "what is deleted is left in pages that nobody uses",
        "stores/_files/sqlite_files.py",
        ', "secure_delete = ON")',
        ', "secure_delete = FAST")',
        ("tests/stores/test_erasure.py",),
    ),
    Mutant(
        "what is deleted is left in the log",
        "stores/_files/sqlite_files.py",
        'database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()',
        "pass",
        ("tests/stores/test_erasure.py",),
    ),
    Mutant(
        "a unique index of others deletes rows of other runs",
        "stores/_rows/sql_schema.py",
        'f"INSERT INTO checkpoint (id,',
        'f"INSERT OR REPLACE INTO checkpoint (id,',
        ("tests/stores/test_files.py",),
    ),
    Mutant(
        "files that others can write to are used",
        "stores/_files/ownership.py",
        "status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)",
        "status.st_mode & stat.S_IWOTH & 0",
        ("tests/stores/test_files.py",),
    ),
    Mutant(
        "a log without its database is deleted",
        "stores/_files/ownership.py",
        "if log_of(file) in others and not file.stat().st_size:",
        "if False:",
        ("tests/stores/test_files.py",),
    ),
    Mutant(
        "what is saved in a file that was replaced is called saved",
        "stores/_rows/sqlite_table.py",
        "        self.files.check(self)\n",
        "",
        ("tests/stores/test_files.py",),
    ),
    Mutant(
        "an async function is taken where one is called for its answer",
        "_util/callables.py",
        "    if is_async_callable(function):\n        return",
        "    if False:\n        return",
        ("tests/test_callables.py",),
    ),
    Mutant(
        "a coroutine counts as an answer",
        "_util/callables.py",
        "    if is_deferred(answer):",
        "    if False:",
        ("tests/test_callables.py",),
    ),
    Mutant(
        "an error of a configuration shows secrets",
        "errors.py",
        "        if may_be_secret(self.key):",
        "        if False:",
        ("tests/test_config.py",),
    ),
    Mutant(
        "what is stored makes installed packages be imported",
        "stores/_rows/encoder.py",
        "registered_format(name).decode",
        "find_format(name).decode",
        ("tests/stores/test_serializers.py",),
    ),
    Mutant(
        "stores are told apart by the reprs of their options",
        "_util/comparable.py",
        "    return kind, value\n",
        "    return kind, repr(value)\n",
        ("tests/test_registries.py",),
    ),
    Mutant(
        "diff believes objects that call themselves equal",
        "stores/summaries.py",
        "not _is_same(first[key], second[key])",
        "first[key] != second[key]",
        (f"{STORES} -k diff",),
    ),
    Mutant(
        "sets are the same if they are equal",
        "_values/sameness.py",
        "    return number_of(one) == number_of(other)\n",
        "    return one == other\n",
        ("tests/test_sameness.py",),
    ),
    Mutant(
        "what is met again at another depth is not counted",
        "stores/_codec/limits.py",
        "                return _is_writable_again(containers)\n",
        "                return _is_writable_again(level)\n",
        ("tests/stores/test_sharing.py",),
    ),
    Mutant(
        "a result that is not signed is used",
        "stores/_files/results.py",
        "if not hmac.compare_digest(entry[:start], _prefix(key, payload, signing_key)):",
        "if signing_key is None and entry[:start] != _prefix(key, payload, None):",
        ("tests/test_cache.py",),
    ),
    Mutant(
        "a nested run is saved before the run around it",
        "_engine/saving.py",
        "    if run.outer_step is not None:  # first",
        "    if False:  # first",
        ("tests/test_nesting.py -k outlives",),
    ),
    Mutant(
        "parts of one who has lost the run are kept",
        "stores/memory.py",
        "        with held(self, run_id) as hold, self._alone:\n            hold.check()\n            if run_id",
        "        with held(self, run_id), self._alone:\n            if run_id",
        ("tests/test_owners.py -k lost_parts",),
    ),
    Mutant(
        "a run is let go of before its States are durable",
        "_engine/saving.py",
        "    if run.plan.write_behind:\n        yield (Flush",
        "    if False:\n        yield (Flush",
        ("tests/test_owners.py -k until_all_is_durable",),
    ),
    Mutant(
        "to close another descriptor of the file lets go of its locks",
        "_owners/byte_locks.py",
        '_OF_FILE = sys.platform == "linux" and struct.calcsize("P") == 8',
        "_OF_FILE = False",
        ("tests/test_owners.py -k open_and_close",),
    ),
    Mutant(
        "a call that is refused marks the owner as one who writes by hand",
        "_owners/file_holds.py",
        "            hold.byte = 0  # nobody unlocks what is another's\n",
        "",
        ("tests/test_owners.py -k refused_at_once",),
    ),
    Mutant(
        "the revision before a lost one passes for the newest",
        "stores/_rows/run_log.py",
        "            self._check_followed(run, rows[-1], after)\n",
        "            pass\n",
        ("tests/stores/test_damage.py -k LostRows",),
    ),
    Mutant(
        "the revision before the newest passes for it, where that was lost",
        "stores/_rows/run_log.py",
        "        if after is None:  # the newest is none of the index\n"
        '            raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is missing")\n',
        "        if after is None:\n            return\n",
        ("tests/stores/test_damage.py -k newest_revision",),
    ),
    Mutant(
        "a fork that is rolled back is none any more",
        "stores/_rows/store.py",
        "rolled_back(state, run.parent, by)",
        "rolled_back(state, state.parent, by)",
        ("tests/stores/test_stores.py -k rolled_back",),
    ),
    Mutant(
        "an owner does not hear that its run was cancelled",
        "_engine/io.py",
        "return self.hold is not None and (self.hold.is_cancelled",
        "return self.hold is None and (self.hold.is_cancelled",
        ("tests/test_calls.py -k cancelling",),
    ),
    Mutant(
        "the fence is not compared with that of the owner",
        "stores/_rows/sqlite_table.py",
        "        return hold.is_lost or number != hold.fence\n\n    def fence",
        "        return hold.is_lost\n\n    def fence",
        ("tests/test_owners.py -k saves_nothing_at_once",),
    ),
    Mutant(
        "one who has lost a run lets go of it for the other",
        "_owners/holds.py",
        "            if self._by_run.get(hold.run_id) is hold:\n                del",
        "            if True:\n                del",
        ("tests/test_owners.py -k frees_nobody",),
    ),
    Mutant(
        "one who has lost a run unlocks it for the other",
        "_owners/file_holds.py",
        "            if self._by_run.get(hold.run_id) is hold:\n                if self",
        "            if hold.run_id in self._by_run:\n                if self",
        ("tests/test_owners.py -k frees_nobody",),
    ),
    Mutant(
        "a second owner is let in where a run is resumed",
        "_engine/resume.py",
        "    owned = owning(run, Hold(run_id, is_shown=run.shows), task, then_runs=True)",
        "    run.takes_over = True\n    owned = owning(run, Hold(run_id, is_shown=run.shows), task, then_runs=True)",
        (f"{STORES} -k second_call_is_refused",),
    ),
    Mutant(
        "two threads open the file with the locks at the same time",
        "_owners/file_holds.py",
        "            if self._locks is None or not self._locks.is_there:  # another",
        "            if True:  # another",
        ("tests/test_owners.py -k first_runs",),
    ),
    Mutant(
        "a run that another process has taken over stays owned by who has lost it",
        "_owners/file_holds.py",
        "        if hold.run_id in self._by_run:\n            self.drop_lost",
        "        if False:\n            self.drop_lost",
        ("tests/test_owners.py -k taken_over_and_done",),
    ),
    Mutant(
        "a sweeper waits for a run that another one claims",
        "stores/_postgres/leasing.py",
        " FOR UPDATE OF r SKIP LOCKED",
        " FOR UPDATE OF r",
        ("tests/stores/test_leases.py -k nobody_waits",),
    ),
    Mutant(
        "a save waits for its server although others may have the run",
        "stores/_servers/asking.py",
        "        yield min(patience, *map(owners.patience, run_ids))\n",
        "        yield patience\n",
        ("tests/stores/test_leases.py -k before_others",),
    ),
    Mutant(
        "a process that was frozen goes on with a run that others have taken",
        "_owners/leases.py",
        "                            self.drop_lost(hold.run_id, self._leases)\n",
        "                            pass\n",
        ("tests/stores/test_leases.py -k others_have_taken",),
    ),
    Mutant(
        "a thread that has lost a run takes it from the one that has taken it",
        "_owners/leases.py",
        "            hold.check()  # or it would take",
        "            pass  # or it would take",
        ("tests/stores/test_leases.py -k comes_late",),
    ),
    Mutant(
        "a write by hand that leases its run is taken for one that has lost it",
        "_owners/leases.py",
        "        hold.is_settled = False  # its fence",
        "        pass  # its fence",
        ("tests/stores/test_leases.py -k looked_at_while",),
    ),
    Mutant(
        "saves to a server wait for each other",
        "stores/_rows/lanes.py",
        "            if lane.waiting < 0:\n",
        "            if True:\n",
        ("tests/stores/test_commit.py -k while_there_are_lanes",),
    ),
    Mutant(
        "nobody is told who has cancelled a run",
        "_engine/cancelled.py",
        "        by = yield (Load, run.services.cancelled_by, run.state.run_id)\n",
        "        yield (Load, run.services.cancelled_by, run.state.run_id)\n",
        ("tests/stores/test_stores.py -k who_has_cancelled",),
    ),
    Mutant(
        "who has let go of a run still writes",
        "_owners/holds.py",
        "    hold.is_lost = True\n    if acting.hold is hold:",
        "    if acting.hold is hold:",
        ("tests/test_owners.py -k owns_nothing_afterwards", "tests/proof -k ownership"),
    ),
    Mutant(
        "a save in PostgreSQL that was made before its answer was lost is called a conflict",
        "stores/_postgres/table.py",
        "bool(rows) or (was_again and self._is_there(server, batch))",
        "bool(rows)",
        ("tests/stores/test_postgres.py -k shared_commit_whose",),
    ),
    Mutant(
        "batches are written to PostgreSQL in the order in which they came",
        "stores/_postgres/table.py",
        "order = sorted(range(len(batches)), key=lambda place: batches[place].run.run_id)",
        "order = list(range(len(batches)))",
        ("tests/stores/test_postgres.py -k opposite_order",),
    ),
    Mutant(
        "a save in PostgreSQL does not compare the fence of its owner",
        "stores/_postgres/statements.py",
        '{Guard.OWNED: ["fence = $3"], Guard',
        "{Guard",
        ("tests/stores/test_leases.py -k nested_in_a_run",),
    ),
    Mutant(
        "a write by hand does not look whether somebody has leased the run",
        "stores/_servers/guards.py",
        "return (Guard.OWNED, hold.fence) if hold.fence else (Guard.BY_HAND, 0)",
        "return (Guard.OWNED, hold.fence) if hold.fence else (Guard.NONE, 0)",
        ("tests/stores/test_leases.py -k somebody_owns",),
    ),
    Mutant(
        "a number of another size makes a statement of its own",
        "stores/_postgres/connections.py",
        "        connection.adapters.register_dumper(int, Int8Dumper)\n",
        "",
        ("tests/stores/test_postgres.py -k any_size",),
    ),
    Mutant(
        "a forked child lets go of what its parent has leased",
        "_owners/leases.py",
        "            hold.fence = 0  # a forked",
        "            pass  # a forked",
        ("tests/test_owners.py -k child_of_an_owner",),
    ),
    Mutant(
        "a lease that has run out is held for ever",
        "_owners/leases.py",
        "return self.is_running and not",
        "return not",
        ("tests/stores/test_leases.py -k another_machine",),
    ),
    Mutant(
        "a turn is taken up twice",
        "_engine/turning.py",
        "if taken < turn.number:",
        "if taken <= turn.number:",
        ("tests/test_turns.py",),
    ),
    Mutant(
        "the number of a turn is not saved",
        "_engine/resume.py",
        "progress=evolved(saved.progress, turn=turn)",
        "progress=saved.progress",
        ("tests/test_turns.py",),
    ),
    Mutant(
        "a run is deleted before anybody noted that its turn is done",
        "_engine/turning.py",
        "attrs.evolve(run.plan, preserve=True, forgets=False)",
        "run.plan",
        ("tests/test_turns.py",),
    ),
    Mutant(
        "what came of a turn is deleted with its run",
        "_dbos/worker.py",
        "state_to_bytes(state) if goes else None",
        "None",
        ("tests/test_dbos.py -k not_preserved",),
    ),
    Mutant(
        "an answer that is on its way does not count yet",
        "_dbos/standing.py",
        "newest.number > turn_of(self.saved) or ",
        "",
        ("tests/test_dbos.py -k answer",),
    ),
    Mutant(
        "a run without data is taken for one that is not there",
        "_dbos/standing.py",
        "0 if self.saved is None else turn_of(self.saved)",
        "turn_of(self.saved) if self.saved else 0",
        ("tests/test_dbos.py -k elsewhere",),
    ),
    Mutant(
        "a child that was forked closes the connections of its parent",
        "_dbos/process.py",
        " or self.is_forked",
        "",
        ("tests/test_dbos.py -k forked",),
    ),
    Mutant(
        "of turns that are ordered at the same time all seem new",
        "_dbos/orders.py",
        '"workflow_id_reuse_policy": "reject"',
        '"workflow_id_reuse_policy": "return-existing"',
        ("tests/test_dbos.py -k ordered_again",),
    ),
    Mutant(
        "a worker takes runs from whoever works on them by hand",
        "_dbos/worker.py",
        "take_over = self._is_dead(busy.owner)",
        "take_over = True",
        ("tests/test_dbos_keeping.py -k by_hand",),
    ),
    Mutant(
        "a turn of a worker that nobody remembers is given back at once",
        "_dbos/keeper.py",
        "(owner in beats or is_old)",
        "True",
        ("tests/test_dbos_keeping.py -k not_known_yet",),
    ),
    Mutant(
        "names stand in pictures as they are",
        "picture/_text.py",
        "    return escape(plain(text))\n",
        "    return plain(text)\n",
        ("tests/test_picture_laws.py",),
    ),
    Mutant(
        "boxes may stand on others",
        "picture/_places.py",
        "while len(groups) > 1 and groups[-2][0]",
        "while len(groups) > 9 and groups[-2][0]",
        ("tests/test_picture_laws.py",),
    ),
    Mutant(
        "what a picture needs is compared",
        "_values/provenance.py",
        "for part in attrs.astuple(edge)[:3])",
        "for part in attrs.astuple(edge))",
        ("tests/stores/test_structures.py",),
    ),
    Mutant(
        "a save in Redis that was made before its answer was lost is called a conflict",
        "stores/_redis/table.py",
        "(code == _WAS_THERE and was_again)",
        "(code == _WAS_THERE and not was_again)",
        ("tests/stores/test_redis.py -k shared_commit_whose",),
    ),
    Mutant(
        "a save in Redis does not compare the fence of its owner",
        "stores/_redis/scripts.py",
        "if ARGV[3] == '1' and not (lease[1] and lease[2] == ARGV[4]) then return {0, cancelled} end\n",
        "",
        ("tests/stores/test_leases.py -k nested_in_a_run",),
    ),
    Mutant(
        "a write by hand to Redis does not look whether somebody has leased the run",
        "stores/_redis/scripts.py",
        "if ARGV[3] == '2' and lease[1] then return {0, cancelled} end\n",
        "",
        ("tests/stores/test_leases.py -k somebody_owns",),
    ),
    Mutant(
        "a save in Redis compares how often was written, and not what",
        "stores/_redis/packing.py",
        'return b"%d %b" % (run.version, run.seal)',
        'return b"%d" % run.version',
        ("tests/stores/test_redis.py -k failover",),
    ),
    Mutant(
        "a store that has lost what was saved does not say so",
        "stores/_rows/run_log.py",
        "now.version < run.version",
        "now.version < 0",
        ("tests/stores/test_redis.py -k failover",),
    ),
    Mutant(
        "a Redis server that syncs once a second is taken for one that keeps all",
        "stores/_redis/connections.py",
        'fsync != "always"',
        'fsync == "no"',
        ("tests/stores/test_redis.py -k server_that_forgets",),
    ),
    Mutant(
        "a save counts though too few replicas of Redis have it",
        "stores/_redis/connections.py",
        "count >= replicas",
        "count >= 0",
        ("tests/stores/test_redis.py -k replicas_that_must",),
    ),
    Mutant(
        "a Redis server that has forgotten the scripts is not told them again",
        "stores/_redis/connections.py",
        "            in_full.add(place)\n",
        "            return False\n",
        ("tests/stores/test_redis.py -k forgets_them",),
    ),
    Mutant(
        "a run that others write to is read from Redis piece by piece",
        "stores/_redis/table.py",
        "        self._whole.run = run_id, whole\n",
        "",
        ("tests/stores/test_redis.py -k keep_writing",),
    ),
    Mutant(
        "what a finaliser saves among saves that are gathered waits for them",
        "stores/_rows/run_log.py",
        " and batch.run.run_id in self.gathering.run_ids:",
        ":",
        ("tests/stores/test_writer.py -k saves_among",),
    ),
    Mutant(
        "saves that a finaliser has made meanwhile are refused when they are made again",
        "stores/write_behind.py",
        "                        if self._is_queued(group):\n                            raise",
        "                        raise",
        ("tests/stores/test_writer.py -k whose_saves_are_made",),
    ),
    Mutant(
        "an export that was cut off between two nested runs is imported",
        "stores/_rows/transfer.py",
        '    _check_whole(run_id, told[0].run, "nested", len(told) - 1)\n',
        "",
        ("tests/stores/test_transfer.py -k missing",),
    ),
    Mutant(
        "parts that are graphs go on when their stream is left",
        "nodes/_parts/graphs.py",
        "        yield (Finish, gathered.stop, None)\n",
        "",
        ("tests/test_streams.py -k GraphsAsParts",),
    ),
    Mutant(
        "a graph that was done before is shown as one that has finished now",
        "nodes/_parts/graphs.py",
        "            if not nested.is_done_before:\n",
        "            if nested:\n",
        ("tests/test_streams.py -k GraphsAsParts",),
    ),
    Mutant(
        "a picture takes a run that nobody is at work on for one that is under way",
        "picture/_run.py",
        '    only = "next" if owner is None else "under way"\n',
        '    only = "under way"\n',
        ("tests/test_pictures.py -k nobody_is_at_work",),
    ),
)


def caught_by(mutant: Mutant | None, folder: Path) -> str:
    """-> the first test that fails on a copy with the mutant, empty if none does."""
    for part in "stategraph tests proof examples docs tools pyproject.toml README.md Makefile".split():
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, folder / part)
    selections = ("tests/test_state.py",) if mutant is None else mutant.tests
    if mutant is not None:
        file = folder / "stategraph" / mutant.file
        text = file.read_text(encoding="utf-8")
        if mutant.old not in text:
            raise SystemExit(f"mutant {mutant.title!r}: what it changes is not in {mutant.file} any more")
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return next(filter(None, (_first_failure(folder, selection) for selection in selections)), "")


def _first_failure(folder: Path, selection: str) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    result = subprocess.run(
        [*command, *selection.split()], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.MULTILINE)
    return failed.group(1) if failed else ""


def try_one(mutant: Mutant) -> tuple[Mutant, str]:
    """-> the mutant, and the test that catches it."""
    with tempfile.TemporaryDirectory() as folder:
        return mutant, caught_by(mutant, Path(folder))


def main() -> int:
    """Try every mutant, or those that were asked for, and print the table -> 1 if one is not caught."""
    parser = argparse.ArgumentParser()
    parser.add_argument("titles", nargs="*", metavar="TEXT", help="only those with this in their title")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    chosen = [one for one in MUTANTS if not given.titles or any(text in one.title for text in given.titles)]
    survived = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, test in pool.map(try_one, chosen):
            survived += not test
            print(f"{'caught  ' if test else 'SURVIVED'}  {mutant.title:66}  {test}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} planted bugs are caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
