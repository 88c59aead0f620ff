"""Trials of stores on servers: what the servers, the network and the machines may do to them."""
