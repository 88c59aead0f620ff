"""Processes that are killed and disks that fail, at chosen moments: what crash_points and power_cuts are made with."""
