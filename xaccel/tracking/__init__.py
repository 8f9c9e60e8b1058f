"""Trackers, one file each, and the hub that feeds them."""
