"""Is this machine fit for training, and do the ranks of a run have the same footing?

Each check looks at one thing for at most a second or two and comes back with a `Check`.
"""
