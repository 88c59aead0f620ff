"""RunIO: what becomes of the failures of a store."""

import pytest

from stategraph._engine.io import RunIO
from stategraph._values.progress import Part
from stategraph.errors import CheckpointError, CheckpointSaveError
from stategraph.observers.base import NoopObserver
from stategraph.state import State

ASKED = {
    "load_parts": (lambda services: services.load_parts(("a", 2, "map")), "could not load its parts"),
    "drop_parts": (lambda services: services.drop_parts(("a", 2, True)), "could not drop its parts"),
}


class Failing:
    """A store in which everything fails."""

    def __init__(self, error):
        self.error = error

    def __getattr__(self, name):
        def fail(*_, **__):
            raise self.error

        return fail

    def __str__(self):
        return "failing store"


def services(error):
    return RunIO(Failing(error), NoopObserver(), "graph")


@pytest.mark.parametrize("name", ASKED)
def test_another_error_is_told_as_one_of_a_checkpoint(name):
    """It names the run, the store and what was asked, and the store's own error is its cause."""
    ask, told = ASKED[name]
    error = OSError("no wire")

    with pytest.raises(CheckpointError, match=f"run 'a': the failing store {told}: OSError: no wire") as raised:
        ask(services(error))

    assert raised.value.__cause__ is error


@pytest.mark.parametrize("name", ASKED)
def test_an_error_of_a_checkpoint_is_left_as_it_is(name):
    """The store has said what there is to say."""
    error = CheckpointError("a", "locked")

    with pytest.raises(CheckpointError) as raised:
        ASKED[name][0](services(error))

    assert raised.value is error


def test_parts_that_could_not_be_saved():
    """The error has the State at stake in it."""
    state = State(run_id="a", step=1)

    with pytest.raises(CheckpointSaveError, match="step 1 could not be saved in the failing store") as raised:
        services(OSError("no wire")).save_parts((state, [Part(2, "map", "x", 1)]))

    assert raised.value.state is state
