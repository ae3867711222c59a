"""One kind of fault a file, each with a `KIND`; see harness.chaos.kinds."""
