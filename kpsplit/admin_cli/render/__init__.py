"""What people see: tables, plans, progress. Nothing in here talks to a broker."""
