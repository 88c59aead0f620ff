"""The nodes of a graph: functions, and nodes that are more than a function."""
