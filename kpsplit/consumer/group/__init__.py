"""Membership of the group: rebalances, subscriptions, and what the coordinator says of who owns what."""
