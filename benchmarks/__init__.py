"""Measures stategraph beside plain Python and beside its peers: `python -m benchmarks`.

A row is one module of `benchmarks.rows`: a title, a goal, a floor and the contenders. A peer is one module of
`benchmarks.peers`, imported only when a row runs it. `measure` says what a row is and how it is run.
"""
