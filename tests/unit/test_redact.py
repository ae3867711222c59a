"""What must not leave the house, and what may stay."""

import json

import pytest

from harness.redact import GONE, Redactor

SECRETS = [
    "--api-key {}",
    "--api-key={}",
    "WANDB_API_KEY={}",
    "export HF_TOKEN='{}'",
    '{{"token": "{}"}}',
    "password: {}",
    "Authorization: Bearer {}",
    "https://me:{}@host.example/x.git",
    "https://store.example/x?a=1&X-Amz-Signature={}&b=2",
]
LOOKS = [
    "AKIAABCDEFGHIJKLMNOP",
    "ghp_" + "a1" * 18,
    "hf_" + "Ab1" * 10,
    "sk-proj-" + "x" * 24,
    "eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("form", SECRETS)
def test_secrets_are_known_by_their_names(form: str) -> None:
    redactor = Redactor()
    told = redactor.text(f"before {form.format('s3cr3t-value')} after")
    assert "s3cr3t-value" not in told
    assert GONE in told
    assert told.startswith("before ")
    assert told.endswith(" after")
    assert redactor.counts["secret"] == 1


@pytest.mark.parametrize("secret", LOOKS)
def test_secrets_are_known_by_their_looks(secret: str) -> None:
    assert Redactor().text(f"a {secret} b") == f"a {GONE} b"


@pytest.mark.parametrize(
    "text",
    [
        "tokens 4096, max_token: 4096 and num_token=1.5e9",
        "step 12 loss 2.5 at train.py:88",
        "token=None",
        "the token was refused",
        "TOKENIZERS_PARALLELISM=false",
        "listening on 127.0.0.1:29500 and 0.0.0.0",
        "torch 2.13.0.1234",
    ],
)
def test_the_rest_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_a_command_line_and_keys_in_json() -> None:
    value = {
        "command": ["train.py", "--wandb-token", "abc", "--lr", "3"],
        "env": {"MY_SECRET": "xyz", "LANG": "C"},
        "tokens": 512,
    }
    told = json.loads(Redactor().json_text(json.dumps(value)))
    assert told == {
        "command": ["train.py", "--wandb-token", GONE, "--lr", "3"],
        "env": {"MY_SECRET": GONE, "LANG": "C"},
        "tokens": 512,
    }


def test_a_line_without_anything_is_the_same_bytes() -> None:
    line = '{"a":  1, "tokens":5}'
    assert Redactor().json_text(line) == line


def test_names_of_people_and_machines_become_words_and_numbers() -> None:
    redactor = Redactor(home="/home/anna", user="anna", hosts=["gpu-a17", "gpu-a1", "vm"])
    told = redactor.text("anna at gpu-a17, gpu-a1 and vm: /home/anna/x from 10.1.2.3 to 10.1.2.4")
    assert told == "[user] at host0, host1 and vm: ~/x from [address 0] to [address 1]"
    assert redactor.text("10.1.2.3 joanna gpu-a170") == "[address 0] joanna gpu-a170"
