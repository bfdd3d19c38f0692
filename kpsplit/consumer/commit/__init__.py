"""Commits: what they write, when, and what goes along with them."""
