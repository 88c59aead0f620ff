"""What a run records in its States beside the data: answers, what nodes have read, where values come from."""
