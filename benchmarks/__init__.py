"""Measures stategraph beside plain Python and beside its peers: `python -m benchmarks`.

All contenders of a row take turns, round after round, in one run on one machine. The report shows medians and their
ratio to the floor, which is the same work in plain Python: times differ from machine to machine, the ratios hardly.

A row is one module of `benchmarks.rows`: a title, a goal, a floor and the contenders. A peer is one module of
`benchmarks.peers`, which is imported only when a row runs it. `measure` says what a row is and how it is run.
"""
