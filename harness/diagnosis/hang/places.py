"""What a rank's stack tells of what it does, by its libraries and by the user's names."""

import re
from collections.abc import Sequence

from harness.events import EvidenceTaken
from harness.incidents import Where
from harness.sightings import Frame

_SERVERS = re.compile(r"/(?:asyncio/\w+|socketserver|wsgiref/\w+|xmlrpc/server)\.py")
_DEBUGGERS = re.compile(r"/(?:pdb|bdb|ipdb|pudb|debugpy|pydevd\w*|IPython/terminal)\b")
_HELPERS = re.compile(
    r"/(?:queue|threading|concurrent/futures/\w+"
    r"|multiprocessing/(?:queues|connection|pool|managers|synchronize))\.py"
)
_WORK_FILES = re.compile(
    r"torch/(?:serialization|_dynamo|_inductor|_functorch|fx|jit|onnx|export|compiler|nn/modules"
    r"|distributed/checkpoint|utils/cpp_extension)"
    r"|/(?:subprocess|shutil|zipfile|tarfile|gzip|lzma|bz2|pickle|json/\w+|csv|sqlite3/\w+|ssl"
    r"|urllib/\w+|http/\w+|socket|importlib/\w+|gc)\.py"
    r"|site-packages/(?:numpy|pandas|pyarrow|PIL|cv2|h5py|safetensors|tokenizers|datasets|fsspec"
    r"|s3fs|gcsfs|boto3|botocore|aiohttp|requests|urllib3|wandb|tensorboard|matplotlib|triton"
    r"|sklearn|scipy|google/cloud|torchvision|torchaudio)"
)
_WRAPPERS = re.compile(r"torch/(?:optim/|utils/checkpoint\.py)")
"""Their names say what they are wrapped around: `Optimizer.profile_hook_step` is in every step."""
_WORK_NAMES = re.compile(
    r"sav(?:e|ing)|check_?point|ckpt|eval|valid|(?:^|_)(?:val|test|infer|predict|generate|gc|log"
    r"|load|plot|dump|init|setup|build|copy|read|write|pause|freeze|warm)(?:_|$|ing)|export"
    r"|upload|download|compil|warm_?up|token|prepar|preproc|collect|snapshot|publish|render|report"
    r"|summar|metric|sync|backup|index|shard|fetch|convert|profil|cleanup",
    re.IGNORECASE,
)


def place_of(evidence: EvidenceTaken) -> str:
    """`file:function` of the user's code that it is in; empty when unknown."""
    at = evidence.user_frame
    return "" if at is None else f"{at.file}:{at.function}"


def is_debugged(evidence: EvidenceTaken) -> bool:
    """Whether it is in a debugger of Python's."""
    return any(_DEBUGGERS.search(frame.file) for frame in evidence.frames)


def serves(evidence: EvidenceTaken) -> bool:
    """Whether it answers requests of others."""
    return any(_SERVERS.search(frame.file) for frame in evidence.frames)


def shows_work(frames: Sequence[Frame], at: Where | None) -> bool:
    """Whether a stack shows work that takes its time, by library or by the user's names."""
    inside = True
    if at is None:
        return False
    for frame in frames:
        inside = inside and frame.file != at.file
        named = _WORK_NAMES.search(frame.function) and not _WRAPPERS.search(frame.file)
        if named or (inside and _WORK_FILES.search(frame.file)):
            return True
    return False


def waits_for_helper(evidence: EvidenceTaken) -> bool:
    """Whether the user's code has asked a thread or a process of its own for something."""
    for frame in evidence.frames:
        if evidence.user_frame is not None and frame.file == evidence.user_frame.file:
            return False
        if _HELPERS.search(frame.file):
            return True
    return False
