"""Agents of Pydantic AI inside of nodes. It needs ``pip install 'durable-stategraph[agents]'``."""

from stategraph.agents.pydantic_ai._durable import durable

__all__ = ["durable"]
