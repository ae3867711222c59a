"""Where things lie in the memory file that agent and worker share: pulse page, then the logs."""

import mmap

from harness.worker import digestlog, grouplog, marklog, p2plog, sites

GROUPS_AT = mmap.PAGESIZE
P2P_AT = GROUPS_AT + grouplog.REGION_BYTES
SITES_AT = P2P_AT + p2plog.REGION_BYTES
MARKS_AT = SITES_AT + sites.REGION_BYTES
DIGESTS_AT = -(-(MARKS_AT + marklog.REGION_BYTES) // 8) * 8
BYTES = DIGESTS_AT + digestlog.REGION_BYTES
"""Only what is written takes memory: a few pages of this where there are few groups."""
