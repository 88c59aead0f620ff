"""Proofs: what stategraph promises of its stores, tried at length.

``make proof`` runs all of them at full length; the tests run a share of each. Each prints what it tried and found.
"""

from pathlib import Path

TOP = Path(__file__).parent.parent
"""The folder of the repository, in which processes of proofs run."""
