"""Agents of Pydantic AI inside of nodes. It needs ``pip install '.[agents]'``; see docs/agents.md."""

from stategraph.agents.pydantic_ai._durable import durable

__all__ = ["durable"]
