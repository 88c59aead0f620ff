"""What does the work of a step: functions, and the nodes that are more than a function."""
