"""What the program sums over ranks by hand: the tensor itself, never one at its old address."""

import torch

from harness.worker.digests.deeds import Deeds


def test_a_tensor_is_known_as_long_as_it_lives() -> None:
    deeds = Deeds()
    gradients = [torch.ones(8, 16), torch.ones(3)]
    deeds.saw((0, 1), [[gradients[0]]], {})
    assert deeds.any
    assert deeds.of_gradients(gradients) == [((0, 1), False), ((), False)]
    view = gradients[0].view(-1)
    assert deeds.of(view) == (0, 1)
    assert deeds.of(gradients[0][1:]) == ()
    deeds.clear()
    assert deeds.of_gradients(gradients) == [((), False)] * 2


def test_what_comes_to_the_address_of_one_that_is_gone_was_not_summed() -> None:
    deeds, memory = Deeds(), bytearray(512)
    for _ in range(50):
        activation = torch.frombuffer(memory, dtype=torch.float32)
        deeds.saw((0, 1), [[activation]], {})
        address = activation.data_ptr()
        del activation
        gradient = torch.frombuffer(memory, dtype=torch.float32)
        assert gradient.data_ptr() == address
        assert deeds.of(gradient) == ()


def test_gradients_in_one_flat_tensor() -> None:
    deeds = Deeds()
    gradients = [torch.ones(8, 16), torch.ones(3)]
    deeds.saw((0, 2), [torch.cat([gradient.reshape(-1) for gradient in gradients])], {})
    assert deeds.of_gradients(gradients) == [((0, 2), True)] * 2
    assert deeds.of_gradients(gradients[:1]) == [((), False)]
    sparse = torch.ones(2, 2).to_sparse()
    deeds.saw((0, 2), [[sparse]], {})
    assert deeds.of(sparse) == ()


def test_gradients_in_some_flat_tensors_that_leave_none_out() -> None:
    deeds = Deeds()
    gradients = [torch.ones(size) for size in (100, 10, 50, 5, 7)]
    for sizes in ((62,), (110,)):  # buckets from the last gradient on, as they come
        deeds.saw((0, 2), [[torch.ones(sizes)]], {})
    assert deeds.of_gradients(gradients) == [((0, 2), True)] * 5
    assert deeds.of_gradients(gradients[1:]) == [((), False)] * 4
    deeds.saw((1, 3), [[gradients[0]]], {})
    deeds.saw((0, 2), [[torch.ones(72)]], {})
    assert deeds.of_gradients(gradients) == [((1, 3), False), *[((0, 2), True)] * 4]
