"""What nodes, engine and drivers say to each other."""
