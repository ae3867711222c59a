"""The configuration: what it accepts, and the one line for everything it refuses."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from harness.trainer.compose import layout
from harness.trainer.config import (
    SECTIONS,
    ConfigError,
    Layout,
    Place,
)
from harness.trainer.flags import flag_of, parse

ROOT = Path(__file__).parents[2]


def test_defaults_fit_one_process() -> None:
    assert layout(parse([]), 1) == Layout(pp=1, dp_replicate=1, dp_shard=1, tp=1)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[optim]\nlr = 1\nsteps = 7\nwarmup = 3\n[run]\ndevice = "cpu"\n')
    config = parse(["--config", str(file), "--steps", "9", "--tied", "--no-deterministic"])
    assert (config.optim.lr, config.optim.steps, config.optim.warmup) == (1.0, 9, 3)
    assert config.model.tied
    assert config.run.device == "cpu"
    assert config.run.deterministic is False


def test_the_demo_is_dp2_tp2_pp2() -> None:
    config = parse(["--config", str(ROOT / "trainer" / "demo.toml")])
    assert layout(config, 8) == Layout(pp=2, dp_replicate=2, dp_shard=1, tp=2)


def test_what_tp_and_pp_leave_is_data_parallel() -> None:
    config = parse(["--tp", "2", "--dp-shard", "2"])
    assert layout(config, 8) == Layout(pp=1, dp_replicate=2, dp_shard=2, tp=2)


def test_every_flag_is_in_the_documentation() -> None:
    table = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
    for cls in SECTIONS.values():
        for field in dataclasses.fields(cls):
            assert f"`{flag_of(field)}`" in table
            assert str(field.metadata["help"]) in table


REFUSED_FLAGS = [
    ("--tp 3", r"--tp 3: heads 4 cannot be split into 3 equal parts"),
    ("--tp 3 --heads 3 --d-model 96", r"--tp 3: ffn width 256 cannot"),
    ("--tp 2 --seq-len 33", r"--tp 2: seq_len 33 cannot"),
    ("--tp 3 --heads 3 --d-model 96 --ffn 96 --seq-len 96", r"vocabulary 256 cannot"),
    ("--heads 3", r"--heads 3: d_model 128 is not a multiple"),
    ("--d-model 12", r"heads of 3, rotary positions need an even size"),
    ("--pp 3 --micro-batches 3", r"--pp 3: 4 layers cannot be split into 3 equal stages"),
    ("--pp 2", r"--micro-batches 1: 1f1b over --pp 2 needs at least 2"),
    ("--pp 2 --schedule zbv", r"--micro-batches 1: zbv over --pp 2 needs at least 2"),
    ("--pp 2 --schedule interleaved --micro-batches 3", r"interleaved needs a multiple of --pp 2"),
    ("--pp 2 --schedule dualpipe-v --micro-batches 2", r"dualpipe-v needs as many as stages"),
    ("--pp 2 --schedule zbv --chunks 3 --micro-batches 2", r"zbv has two stages on a rank"),
    ("--pp 2 --schedule gpipe --chunks 2", r"--chunks 2: gpipe has one stage on a rank"),
    ("--pp 2 --stage-layers 3,2 --micro-batches 2", r"give 2 numbers that sum to 4 layers"),
    ("--pp 3 --stage-layers 2,0,2 --micro-batches 3", r"only the first and the last stage have"),
    ("--stage-layers 4", r"--stage-layers 4 needs --pp 2 or more"),
    (
        "--pp 2 --zero 2 --dp-shard 2 --micro-batches 2",
        r"--zero 2 with --pp 2: every micro-batch would be",
    ),
    ("--zero 1", r"--zero 1 splits over --dp-shard, which is 1; give it"),
    ("--schedule zbv", r"--schedule zbv needs --pp 2 or more"),
    ("--cp 3", r"--cp 3: seq_len 128 cannot be split"),
    ("--cp 8 --cp-method ulysses", r"--cp 8 with ulysses: 4 heads .*; use --cp-method ring"),
    ("--ep 2", r"--ep 2 needs --experts"),
    ("--ep 2 --experts 3", r"--ep 2: 3 experts cannot be split into 2 equal parts"),
    ("--experts 1", r"--top-k 2: there are only 1 experts"),
    ("--experts 4 --capacity 1 --tp 2", r"places are counted in whole sequences; use --capacity 0"),
    ("--experts 4 --precision fp8", r"--precision fp8 with --experts: .*; use bf16"),
    (
        "--pp 2 --schedule zbv --micro-batches 4 --recompute selective",
        r"--recompute selective with --schedule zbv: .*; use full",
    ),
    ("--shared-expert", r"--shared-expert needs --experts"),
    ("--capacity 1", r"--capacity 1.0 needs --experts"),
    ("--beta1 1", r"--beta1 must be below 1, not 1"),
    ("--experts 4 --recompute selective", r"--recompute selective with --experts: .*; use full"),
    ("--ddp --tp 2", r"--ddp is plain data parallel: it goes with no"),
    ("--ddp --meta-init", r"--ddp keeps everything on every rank"),
    ("--ddp --precision bf16", r"--ddp with --precision bf16: .*; leave --ddp out"),
    ("--noise-every 5", r"--noise-every 5 compares one micro-batch with all"),
    ("--decay-steps 5", r"--decay-steps 5 is for --decay wsd; cosine takes all steps"),
    (
        "--decay wsd --decay-steps 95",
        r"--decay-steps 95: only 100 steps less 10 of warm-up are left",
    ),
    ("--precision fp4", r"--precision must be one of fp32, bf16, fp16, fp8, fp64, not 'fp4'"),
    ("--pp 2 --micro-batches 2 --tied", r"--tied with --pp 2: .*; use --no-tied"),
    ("--dp 2 --dp-shard 3", r"--dp-shard 3: dp 2 is not a multiple"),
    ("--warmup 101", r"--warmup 101: there are only 100 steps"),
    ("--checkpoint-every 5", r"--checkpoint-every 5 needs --checkpoint-dir"),
    ("--stepz 3", r"unknown argument --stepz; did you mean --steps\?"),
    ("--step 3", r"unknown argument --step; did you mean --steps\?"),
    ("extra", r"unknown argument extra"),
    ("--layers many", r"--layers: invalid int value: 'many'"),
    ("--layers 0", r"--layers must be at least 1, not 0"),
    ("--lr 0", r"--lr must be above 0, not 0"),
    ("--lr nan", r"--lr must be a number, not nan"),
    ("--min-lr 2", r"--min-lr must be at most 1, not 2"),
    ("--device tpu", r"--device must be one of auto, cpu, cuda, not 'tpu'"),
    ("--seed", r"--seed: expected one argument"),
    ("--config /nowhere.toml", r"--config /nowhere.toml: No such file"),
]


@pytest.mark.parametrize(("flags", "why"), REFUSED_FLAGS)
def test_wrong_flags_get_one_line(flags: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(flags.split())
    assert re.search(why, str(error.value))
    assert "\n" not in str(error.value)


REFUSED_FILES = [
    ("[modle]\n", r"unknown section \[modle\]; did you mean model\?"),
    ("[model]\nd_modle = 1\n", r"unknown key d_modle in \[model\]; did you mean d_model\?"),
    ("[model]\nlayers = '4'\n", r"\[model\] layers must be an integer, not '4'"),
    ("[model]\nlayers = 4.0\n", r"\[model\] layers must be an integer, not 4.0"),
    ("[model]\nlayers = true\n", r"\[model\] layers must be an integer, not True"),
    ("[model]\ntied = 1\n", r"\[model\] tied must be true or false, not 1"),
    ("[optim]\nlr = 'fast'\n", r"\[optim\] lr must be a number, not 'fast'"),
    ("[data]\npath = 3\n", r"\[data\] path must be a text, not 3"),
    ("model = 3\n", r"model must be a section"),
    ("[model\n", r"not TOML: .*line 1"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED_FILES)
def test_wrong_files_get_one_line(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        parse(["--config", str(file)])
    assert re.search(why, str(error.value))
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


REFUSED_WORLDS = [
    ("--tp 2 --pp 2 --micro-batches 2", 6, r"tp 2 x pp 2 needs a multiple of 4 ranks, there are 6"),
    ("--dp 2 --tp 2", 8, r"dp 2 x tp 2 x pp 1 needs 4 ranks, there are 8"),
    ("--dp-shard 3", 4, r"--dp-shard 3: dp 4 is not a multiple"),
    ("--global-batch 6", 4, r"--global-batch 6: not a multiple of dp 4 x 1 micro-batches"),
    ("--cp 2", 3, r"tp 1 x pp 1 x cp 2 needs a multiple of 2 ranks, there are 3"),
    (
        "--experts 4 --ep 2 --dp-shard 6 --global-batch 6 --d-model 32 --ffn 64",
        6,
        r"--ep 2: 3 ranks hold the same experts, and neither ffn width 64 nor d_model 32 can",
    ),
    (
        "--experts 4 --ep 4",
        2,
        r"--ep 4: its ranks come from dp_shard 1 x cp 1 x tp 1, which is not",
    ),
    ("--micro-batches 3", 1, r"--global-batch 8: not a multiple of dp 1 x 3 micro-batches"),
]


@pytest.mark.parametrize(("flags", "world_size", "why"), REFUSED_WORLDS)
def test_wrong_worlds_get_one_line(flags: str, world_size: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        layout(parse(flags.split()), world_size)


def test_place_is_read_from_the_worker_environment() -> None:
    assert Place.from_env({}) == Place()
    env = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    alone = Place(rank=5, local_rank=1, world_size=8, local_world_size=8, launched=True)
    assert Place.from_env(env) == alone
    assert Place.from_env(env | {"LOCAL_WORLD_SIZE": "4"}).local_world_size == 4


@pytest.mark.parametrize(
    "env", [{"RANK": "0"}, {"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}]
)
def test_a_broken_worker_environment_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Place.from_env(env)
