"""The slots that a member holds, from their assignment until they are handed over."""
