"""Proves or refutes that a topic went through its splits and merges without loss, repetition or disorder."""
