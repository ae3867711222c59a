"""Flight-record dumps of any PyTorch job, read without trusting them.

A dump is written by a stranger: `untrusted` turns its bytes into plain values and nothing else,
`digest` keeps what the diagnosis needs and throws the rest away, `reader` does both in a process
of its own with limited memory, `folder` asks readers for a whole directory, `waits` puts the
answers into the words of `harness.diagnosis.waits`.
"""
