"""What an engine that places nodes is given to start a run on them."""
