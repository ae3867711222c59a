"""What Harness computes within a program shows in nothing that the program has around it."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from harness.worker.unseen import Unseen


class _Functions(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_of_the_program_see_none_of_it():
    matrix = torch.ones(4, 4)
    with FlopCounterMode(display=False) as flops, _Functions() as functions:
        with Unseen():
            assert float((matrix @ matrix).sum()) == 64
        assert (flops.get_total_flops(), functions.seen) == (0, [])
        _ = matrix @ matrix
        assert flops.get_total_flops() > 0
        assert functions.seen == ["matmul"]


def test_a_default_device_does_not_count():
    with torch.device("meta"), Unseen():
        assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize("differentiated", [True, False])
def test_nobody_differentiates_it_and_all_is_as_before_when_it_fails(differentiated):
    weight = torch.ones(1, requires_grad=True)

    def fail():
        with Unseen():
            assert not (weight * 2).requires_grad
            return 1 // 0

    with torch.set_grad_enabled(differentiated):
        with pytest.raises(ZeroDivisionError):
            fail()
        assert torch.is_grad_enabled() is differentiated
        assert (weight * 2).requires_grad is differentiated
