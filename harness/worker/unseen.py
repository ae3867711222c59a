"""What Harness computes in the user's process, kept from what the user has around it."""

import sys
from typing import Any


class Unseen:
    """What is done within counts in no mode of the user's (a counter of flops, a default device)
    and is differentiated by nobody. Not for use by two at a time.

    Entered in every step, after the program has driven all code out of the processor's caches: few
    calls, therefore, of few modules, where contextlib and torch.no_grad would cost a multiple.
    """

    __slots__ = ("_differentiated", "_functions", "_modes")

    def __enter__(self) -> None:
        torch = sys.modules["torch"]
        self._functions = torch._C.DisableTorchFunction()
        self._functions.__enter__()
        self._modes = None
        if torch._C._len_torch_dispatch_stack():
            self._modes = sys.modules["torch.utils._python_dispatch"]._disable_current_modes()
            self._modes.__enter__()
        self._differentiated = torch._C.is_grad_enabled()
        if self._differentiated:
            torch._C._set_grad_enabled(False)

    def __exit__(self, *raised: Any) -> None:
        torch = sys.modules["torch"]
        if self._differentiated:
            torch._C._set_grad_enabled(True)
        if self._modes is not None:
            self._modes.__exit__(*raised)
        self._functions.__exit__(*raised)


def unwatchable() -> bool:
    """Whether what goes on is being compiled or captured: there are no values then."""
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling():
        return True
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
