"""Membership of the group: rebalances, subscriptions, and who owns what by the coordinator's word."""
