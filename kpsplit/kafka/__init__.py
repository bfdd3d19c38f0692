"""The only package that talks to brokers for kpsplit itself: connection, control plane, admin calls."""
