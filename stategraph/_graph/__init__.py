"""From definition to plan: the nodes and edges of a graph, checked and made ready to run."""
