"""One recorded collective or point-to-point operation, whatever the backend."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """An entry of a rank's flight record.

    `record_id` orders the rank's own entries; `seq_id` is the position in the process group `pg`
    (the same on all its members). `pg_desc` is the group's role, for example `mesh_dp`.
    `sizes` are the input shapes. `state` is scheduled, started or completed; Gloo never leaves
    `scheduled`, so `retired` tells whether it has finished there (also when it failed).
    """

    record_id: int
    pg: str
    pg_desc: str
    seq_id: int
    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    retired: bool
    created_ns: int
