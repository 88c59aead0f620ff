"""What a graph needs beyond plain functions and edges, found out when it is compiled."""
