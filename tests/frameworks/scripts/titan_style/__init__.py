"""A training that is a package with a configuration, started with `-m`, as torchtitan's is."""
