"""What a graph needs beyond the heart, found out when it is compiled."""
