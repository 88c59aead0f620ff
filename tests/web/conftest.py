"""Fixtures of the tests of the page."""

import pytest
from starlette.testclient import TestClient

from stategraph.stores.memory import MemoryStore
from stategraph.web import app
from tests.web.desk import desk


@pytest.fixture
def store():
    """Return an empty store."""
    with MemoryStore() as made:
        yield made


@pytest.fixture
def graph(store):
    """Return the graph of a desk over it."""
    return desk(store)


@pytest.fixture
def page(store, graph):
    """Return a client that has been let in, of a page that may change runs of the graph."""
    return let_in(app(store, [graph]))


def let_in(guard, address="http://localhost:7420"):
    """Return a client that has the token."""
    client = TestClient(guard, base_url=address)
    client.base_url = client.get(f"/?token={guard.token}").url
    return client
