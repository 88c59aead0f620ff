"""The records of a run in its States besides the data: answers, reads of nodes, origins of values."""
