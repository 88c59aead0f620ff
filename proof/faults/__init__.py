"""Processes that are killed, and disks that fail, at a chosen moment: the machinery behind crash_points and power_cuts."""
