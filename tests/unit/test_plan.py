"""The field's worked numbers, and schedules that can be run."""

import json
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import plan
from harness.cli.group import call
from harness.errors import UsageError
from harness.plan.orders import Schedule, default_chunks, place_of
from harness.plan.report import default_batch

GB = 1e9
H100 = 989e12


def test_model_states_of_7b_on_8() -> None:
    states = [plan.model_states(7e9, dp=8, zero=zero).total / GB for zero in range(4)]
    assert states == [112, 38.5, 26.25, 14]
    whole = plan.model_states(7e9)
    assert (whole.parameters, whole.gradients, whole.optimizer) == (14 * GB, 14 * GB, 84 * GB)
    assert plan.fsdp2_states(7e9, dp=8).total == 14 * GB
    assert plan.model_states(70e9).total == 1120 * GB


@pytest.mark.parametrize(
    ("split", "mib"),
    [
        ({}, 912),
        ({"flash": True}, 272),
        ({"recompute": "selective"}, 272),
        ({"flash": True, "tp": 8}, 104),
        ({"tp": 8}, 184),
        ({"tp": 8, "sequence_parallel": True}, 114),
        ({"tp": 8, "sequence_parallel": True, "flash": True}, 34),
        ({"recompute": "full"}, 16),
        ({"cp": 2, "flash": True}, 136),
    ],
)
def test_activations_of_a_layer(split: dict[str, object], mib: float) -> None:
    found = plan.layer_activations(seq=2048, batch=1, hidden=4096, heads=32, **split)  # type: ignore[arg-type]
    assert found == mib * 2**20


def test_all_reduce() -> None:
    link = plan.Link(bandwidth=50e9, latency=5e-6)
    ring = plan.ring_all_reduce(14e9, 8, link)
    assert ring.sent == 1.75 * 14e9
    assert ring.seconds == pytest.approx(14 * 5e-6 + 24.5e9 / 50e9)
    tree = plan.tree_all_reduce(14e9, 8, link)
    assert (tree.sent, tree.seconds) == (28e9, pytest.approx(6 * 5e-6 + 28e9 / 50e9))
    assert (
        plan.tree_all_reduce(1e3, 512, link).seconds < plan.ring_all_reduce(1e3, 512, link).seconds
    )
    inside = plan.Link(bandwidth=450e9, latency=5e-6)
    both = plan.hierarchical_all_reduce(14e9, 64, 8, inside, link)
    assert both.between == pytest.approx(2 * 7 / 8 * 14e9 / 8)
    assert both.sent == pytest.approx(2 * 63 / 64 * 14e9)
    assert both.seconds < plan.ring_all_reduce(14e9, 64, link).seconds / 4
    with pytest.raises(ValueError, match="60 ranks are not a multiple of 8"):
        plan.hierarchical_all_reduce(1, 60, 8, inside, link)
    assert plan.ring_all_reduce(1e9, 1, link).seconds == 0
    assert plan.tree_all_reduce(1e9, 1, link).seconds == 0


def test_zero_traffic() -> None:
    once = plan.zero_traffic(7e9, dp=8, zero=1)
    assert once == plan.ring_all_reduce(14e9, 8, plan.Link(bandwidth=1)).sent == 24.5 * GB
    assert plan.zero_traffic(7e9, dp=8, zero=3) == 36.75 * GB


def test_bubbles() -> None:
    assert plan.bubble(8, 8) == 7 / 15
    assert plan.bubble(8, 64) == pytest.approx(0.0986, abs=1e-4)
    assert plan.bubble(8, 8, chunks=4) == pytest.approx(0.179, abs=1e-3)


def test_utilisation() -> None:
    per_token = plan.flops_per_token(7e9)
    assert plan.mfu(per_token, 0.5e6, 64, H100) == pytest.approx(0.3318, abs=1e-4)
    assert plan.hfu(0.3, "full") == pytest.approx(0.4)
    assert plan.hfu(0.3, "selective") == 0.3
    speed = plan.ideal_tokens_per_s(per_token, 64, H100, 0.3318)
    assert speed == pytest.approx(0.5e6, rel=1e-3)


def test_batches() -> None:
    at = plan.against_critical(4e6, 4e6)
    assert (at.steps, at.tokens) == (2, 2)
    assert "more GPUs still save" in plan.against_critical(1e6, 4e6).verdict
    assert "above the critical batch" in plan.against_critical(8e6, 4e6).verdict
    assert plan.critical_batch(1.0) == 2.1e8
    assert plan.critical_batch(3.0) < plan.critical_batch(2.0)
    assert plan.scaled_rate(1e-3, 4, 1, square_root=True) == 2e-3
    assert plan.scaled_rate(1e-3, 4, 1, square_root=False) == 4e-3


sizes = st.integers(1, 4)
FEW = settings(max_examples=15, deadline=None)


@FEW
@given(schedule=st.sampled_from(plan.SCHEDULES), stages=sizes, turns=sizes, chunks=sizes)
def test_every_schedule_runs_all_pieces_in_a_possible_order(
    schedule: Schedule, stages: int, turns: int, chunks: int
) -> None:
    if schedule in ("gpipe", "1f1b", "zbv", "dualpipe-v"):
        chunks = default_chunks(schedule)
    m = turns * stages * (2 if schedule == "dualpipe-v" else 1)
    if schedule in ("gpipe", "1f1b", "zbv", "looped-bfs"):
        m = turns
    line = plan.timeline(schedule, stages=stages, micro_batches=m, chunks=chunks)
    ends: dict[tuple[str, int, int], plan.Piece] = {}
    for number, rank in enumerate(line.ranks):
        clock = Fraction(0)
        for piece in rank:
            assert piece.begin >= clock, "one thing at a time"
            clock = piece.end
            kind = "B" if piece.kind == "I" else piece.kind
            place = place_of(schedule, number, piece.chunk, stages)
            assert (kind, piece.micro_batch, place) not in ends
            ends[kind, piece.micro_batch, place] = piece
    halved = sum(piece.kind == "I" for rank in line.ranks for piece in rank)
    assert sum(kind == "W" for kind, _, _ in ends) == halved
    assert len(ends) - halved == stages * chunks * m * 2
    last = stages * chunks - 1
    for (kind, i, place), piece in ends.items():
        if kind == "F" and place:
            assert piece.begin >= ends["F", i, place - 1].end
        if kind == "B":
            before = ends["B", i, place + 1] if place < last else ends["F", i, place]
            assert piece.begin >= before.end
        if kind == "W":
            assert piece.begin >= ends["B", i, place].end
    rows = plan.drawn(line)
    assert len(rows) == stages
    assert len({len(row) for row in rows}) == 1


@FEW
@given(stages=sizes, turns=sizes, chunks=st.integers(2, 4))
def test_the_bubble_of_a_schedule_is_the_formula(stages: int, turns: int, chunks: int) -> None:
    m = stages * turns
    for schedule in ("gpipe", "1f1b"):
        line = plan.timeline(schedule, stages=stages, micro_batches=m)
        assert line.bubble == pytest.approx(plan.bubble(stages, m))
    line = plan.timeline("interleaved", stages=stages, micro_batches=m, chunks=chunks)
    assert line.bubble == pytest.approx(plan.bubble(stages, m, chunks=chunks))
    zero = plan.timeline("zero-bubble", stages=stages, micro_batches=m)
    assert zero.bubble == pytest.approx((stages - 1) / (3 * m + stages - 1))
    # What weight gradients do not fill is half as long, as each stage is.
    for schedule in ("zbv", "dualpipe-v"):
        line = plan.timeline(schedule, stages=stages, micro_batches=2 * m, chunks=2)
        assert line.bubble == pytest.approx((stages - 1) / (12 * m + stages - 1))


@FEW
@given(stages=sizes, micro_batches=sizes)
def test_what_a_stage_holds(stages: int, micro_batches: int) -> None:
    def held(schedule: Schedule) -> int:
        return plan.timeline(schedule, stages=stages, micro_batches=micro_batches).in_flight

    assert held("gpipe") == micro_batches
    assert held("1f1b") == held("zero-bubble") == min(stages, micro_batches)
    assert plan.in_flight(pp=stages, micro_batches=micro_batches) == held("1f1b")


def test_a_schedule_as_text() -> None:
    assert plan.drawn(plan.timeline("zero-bubble", stages=2, micro_batches=2)) == [
        "0 |F0F1..I0W0I1W1|",
        "1 |..F0I0F1I1W0W1|",
    ]


def job(name: str, gpus: int, batch: int = 1024, per_node: int = 8, seq: int = 4096) -> plan.Job:
    return plan.Job(
        model=plan.known(name),
        gpu=plan.gpu("H100"),
        gpus=gpus,
        per_node=per_node,
        seq=seq,
        batch=batch,
    )


def test_70b_on_512_puts_tp_inside_the_node() -> None:
    advice = plan.advise(job("70B", 512))
    best = advice.best
    assert best.tp * best.pp * best.dp == 512
    assert 1 < best.tp <= 8
    assert best.bytes < 80 * GB
    why = "\n".join(advice.reasons)
    assert f"tp {best.tp} inside the node (of 8)" in why
    assert "that may be planned" in why
    assert advice.others
    assert all(other.seconds >= best.seconds / 1.03 for other in advice.others)


def test_the_layouts_that_the_guides_name() -> None:
    megatron = plan.judge(job("70B", 512), tp=8, pp=4, zero=1)
    assert (megatron.dp, megatron.name) == (16, "tp 8 x pp 4 x dp 16, ZeRO-1")
    assert megatron.states / GB == pytest.approx(10.39, abs=0.01)
    assert plan.model_states(70e9 / 8, dp=64, zero=3).total / GB == pytest.approx(2.19, abs=0.01)
    llama = plan.advise(job("405B", 16384, batch=2048)).best
    assert llama.tp == 8
    assert llama.pp in (8, 16)


def test_a_batch_when_nobody_says() -> None:
    assert [default_batch(gpus, 4096) for gpus in (8, 12, 512, 4096)] == [1024, 1020, 1024, 4096]
    assert default_batch(16384, 4096) == 4096
    assert default_batch(8, 2**30) == 1


@FEW
@given(
    name=st.sampled_from([*plan.MODELS, "350M", "3B", "1T"]),
    gpus=st.sampled_from([1, 2, 6, 8, 24, 64, 512]),
    per_node=st.sampled_from([1, 4, 8]),
)
def test_advice_fits_or_says_why_not(name: str, gpus: int, per_node: int) -> None:
    asked = job(name, gpus, batch=gpus * 4, per_node=per_node)
    if all(one.bytes > 0.9 * 80 * GB for one in plan.candidates(asked)):
        with pytest.raises(UsageError, match="does not fit"):
            plan.advise(asked)
        return
    advice = plan.advise(asked)
    best = advice.best
    assert best.tp * best.pp * best.cp * best.dp == gpus
    assert best.tp <= per_node
    assert (best.tp * best.cp * best.dp) % best.ep == 0
    assert best.bytes <= 0.9 * 80 * GB
    assert best.dp * best.micro_batch * best.micro_batches == asked.batch
    about = [reason.split()[0] for reason in advice.reasons]
    experts, parts = asked.model.experts, "cp" in about
    assert parts or best.cp == 1
    assert about[:2] + about[2 + parts + bool(experts) :][:1] == ["tp", "pp", "dp"]
    assert len(about) == 4 + parts + bool(experts)


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("70B", 70),
        ("8x7B", 12.9),
        ("8x22B", 39),
        ("30B-A3B", 3.3),
        ("235B-A22B", 22),
        ("671b-a37b", 37),
    ],
)
def test_what_a_token_meets(name: str, active: float) -> None:
    assert plan.known(name).active / GB == pytest.approx(active, rel=0.02)


def test_a_dense_model_is_given_experts_of_its_own_size() -> None:
    mixture = plan.with_experts(plan.known("8B"), experts=8, top_k=2)
    assert mixture.expert == pytest.approx(3 * 4096 * 14336, rel=0.01)
    assert mixture.parameters / GB == pytest.approx(47.25, abs=0.1)
    assert mixture.active / GB == pytest.approx(13.6, abs=0.1)
    shared = plan.with_experts(plan.known("350M"), experts=4, top_k=1, shared=1)
    assert shared.expert == 8 * shared.hidden**2
    assert shared.active == plan.known("350M").parameters + shared.layers * shared.expert


def test_traffic_of_experts_and_of_the_ring() -> None:
    sizes = {"seq": 4096, "batch": 1, "hidden": 4096, "layers": 32}
    routed = plan.expert_parallel_traffic(**sizes, top_k=2, ep=8)
    assert routed == 32 * 4 * 7 / 8 * 2 * 2 * 4096 * 4096
    assert plan.expert_parallel_traffic(**sizes, top_k=2, ep=8, tp=2, cp=2) == routed / 4
    assert plan.expert_parallel_traffic(**sizes, top_k=2, ep=1) == 0
    ring = plan.ring_attention_traffic(**sizes, kv=0.25, cp=4)
    assert ring == 32 * 3 * 3 * 2 * 2 * 1024 * 4096 * 0.25
    assert plan.ring_attention_traffic(**sizes, kv=0.25, cp=1) == 0
    # Experts as a dense layer has them: one of 8 h^2, on its way there and back.
    dense = plan.layer_activations(
        seq=4096, batch=1, hidden=4096, heads=32, tp=2, sequence_parallel=True, flash=True
    )
    more = plan.expert_activations(seq=4096, batch=1, hidden=4096, met=1, top_k=1, tp=2)
    assert more == dense * 4 / 34


def test_short_sequences_of_a_dense_model_leave_cp_and_ep_alone() -> None:
    every = plan.candidates(job("70B", 512))
    assert {(one.cp, one.ep) for one in every} == {(1, 1)}


def test_experts_are_spread_inside_the_node() -> None:
    advice = plan.advise(job("8x7B", 64))
    best = advice.best
    assert best.ep == 8
    (why,) = [reason for reason in advice.reasons if reason.startswith("ep 8: ")]
    assert "1 of 8 experts on each GPU" in why
    assert "inside the node (of 8)" in why
    assert "ep 1 (" in why
    spread = plan.judge(job("8x7B", 64), tp=1, pp=1, zero=1, ep=8)
    whole = plan.judge(job("8x7B", 64), tp=1, pp=1, zero=1)
    assert spread.states < whole.states / 3
    assert spread.ep_exposed > whole.ep_exposed == 0
    # Between nodes the same bytes take the slower link.
    alone = plan.judge(job("8x7B", 64, per_node=1), tp=1, pp=1, zero=1, ep=8)
    assert alone.ep_exposed == pytest.approx(9 * spread.ep_exposed)
    fixed = plan.advise(job("8x7B", 64), ep=4).best
    assert fixed.ep == 4


def test_many_experts_over_more_than_a_node_say_why() -> None:
    advice = plan.advise(job("671B-A37B", 2048, batch=128, seq=131072))
    (why,) = [reason for reason in advice.reasons if reason.startswith("ep ")]
    assert advice.best.ep > 8
    assert f"over {advice.best.ep // 8} nodes" in why
    assert "inside a node (" in why


def test_long_sequences_are_split() -> None:
    advice = plan.advise(job("8B", 64, batch=64, seq=131072))
    (why,) = [reason for reason in advice.reasons if reason.startswith("cp ")]
    assert advice.best.cp > 1
    assert f"{131072 // advice.best.cp:,} of a sequence's 131,072 tokens on each" in why
    assert "cp 1 (" in why
    assert "would take" in why
    given = plan.advise(job("8B", 64), cp=2)
    assert given.best.cp == 2
    (why,) = [reason for reason in given.reasons if reason.startswith("cp ")]
    assert why.startswith("cp 2: 2,048 of a sequence's 4,096 tokens on each, as asked; ")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (job("7B", 64, batch=4, seq=2**22), "whole, it does not fit: with tp 8, sequence parallel"),
        (job("7B", 512, batch=1), "whole, the 1 of a step cannot be divided over 512 GPUs"),
    ],
)
def test_sequences_are_split_where_they_must_be(asked: plan.Job, said: str) -> None:
    advice = plan.advise(asked)
    assert advice.best.cp > 1
    assert any(said in reason for reason in advice.reasons)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"cp": 3}, "cp 3"),
        ({"ep": 2}, "ep 2"),
    ],
)
def test_what_does_not_divide_is_refused(wrong: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        plan.judge(job("7B", 8), tp=1, pp=1, zero=0, **wrong)


def harness(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\nfrom harness.cli.group import call\ncode = call(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules and 'grpc' not in sys.modules\nsys.exit(code)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "plan", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_tells_everything_without_torch() -> None:
    asked = ("--gpus", "64", "--tokens-per-s", "0.5e6", "--pp", "8", "--loss", "2")
    done = harness("7B", *asked)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("layout: pp 8", "ZeRO-3", "hierarchical", "bubble: 0.467", "MFU: 0.33", "batch:"):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 200


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "error[H006]: no model given\nhelp: for example: harness plan 70B --gpus 512\n"),
        (("7x",), "error[H006]: no model is called '7x'\nhelp: there are 1B, "),
        (("7B", "--gpu", "H1"), "error[H006]: no GPU is called 'H1'\nhelp: there are A100, "),
        (("70B", "--tp", "3"), "error[H006]: --tp 3: 64 heads cannot be divided by it\n"),
        (("7B", "--pp", "3"), "error[H006]: --pp 3: 8 GPUs cannot be divided by 3\n"),
        (
            ("7B", "--pp", "2", "--cp", "3"),
            "error[H006]: --pp 2 and --cp 3: 8 GPUs cannot be divided by 6\n",
        ),
        (
            ("7B", "--cp", "8", "--seq-len", "100"),
            "error[H006]: --cp 8: 100 tokens cannot be split into two equal parts for each of cp 8",
        ),
        (("7B", "--ep", "8"), "error[H006]: --ep 8: 7B has no experts\nhelp: give --experts, or "),
        (("8x7B", "--ep", "3"), "error[H006]: --ep 3: 8 experts cannot be divided by it\n"),
        (
            ("8x7B", "--ep", "8", "--pp", "2"),
            "error[H006]: --ep 8: its ranks come from tp, cp and dp, and 4 GPUs of a stage cannot",
        ),
        (("8x7B", "--experts", "4"), "error[H006]: 8x7B has 8 experts of its own\n"),
        (("7B", "--experts", "2", "--top-k", "3"), "error[H006]: --top-k 3: there are only 2 exp"),
        (("7B", "--top-k", "3"), "error[H006]: --top-k goes with --experts\n"),
        (("7B", "--shared-expert"), "error[H006]: --shared-expert goes with --experts\n"),
        (("--schedule", "x"), "error[H006]: no schedule is called 'x'\nhelp: there are gpipe, "),
        (
            ("--schedule", "interleaved", "--pp", "4", "--micro-batches", "6"),
            "error[H006]: interleaved needs micro-batches in multiples of 4 stages\nhelp: ",
        ),
        (
            ("7B", "--loss", "2", "--critical-batch", "1e6"),
            "error[H006]: --loss and --critical-batch",
        ),
    ],
)
def test_wrong_questions_get_two_lines(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["plan", *arguments]) == 2
    text = capsys.readouterr().err
    assert text.startswith(said)
    assert len(text.splitlines()) == 2


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["plan", "7B", "--gpus", "8", "--pp", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert told["bubble"] == 7 / 15
    assert told["layout"]["pp"] == 8
    assert call(["plan", "70B", "--gpus", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["layout"] is None
    assert "70B does not fit" in told["reasons"][0]
    assert told["states"]["zero3"]["total"] == 140 * GB
    asked = ["--experts", "8", "--top-k", "2", "--shared-expert", "--gpus", "64", "--ep", "8"]
    assert call(["plan", "8B", *asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    model, layout = told["model"], told["layout"]
    assert (model["experts"], model["top_k"], model["shared"]) == (8, 2, 1)
    assert model["active"] == model["parameters"] - 32 * 6 * model["expert"]
    assert (layout["ep"], layout["cp"]) == (8, 1)
    assert layout["ep_exposed"] > 0
    rest, spread = model["parameters"] - 32 * 8 * model["expert"], 32 * model["expert"]
    assert told["states"]["zero0"]["total"] == pytest.approx(16 * (rest + spread))
    assert told["states"]["fsdp2"]["total"] == pytest.approx(16 * model["parameters"] / 64)
    whole = told["activations"]["flash"]["tp1"]
    assert call(["plan", "8B", "--gpus", "64", "--cp", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["activations"]["flash"]["tp1"] == whole / 2
    assert call(["plan", "--schedule", "--pp", "2", "--micro-batches", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["drawn"] == ["0 |F0F1....B0==..B1==|", "1 |..F0B0==F1B1==....|"]
    assert told["bubble"] == pytest.approx(1 / 3)
