"""DataFrame in, DataFrame out: native expressions only, no session, no Python on the data path."""
