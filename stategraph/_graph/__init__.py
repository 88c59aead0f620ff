"""From definition to compiled graph: nodes and edges, checked and made ready to run."""
