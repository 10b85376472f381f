"""The programs of the guides for libraries run as `model-gateway clients` prints them, with the packages of this suite."""

import os
import subprocess
import sys

import pytest

from gateway import ALPHA, BETA, command, create_account


def _guides() -> list[str]:
    """The guides whose programs this suite must run: those with a version that the pages call tested."""
    tested = [
        client["id"]
        for client in command("clients")["clients"]
        if client["kind"] == "library" and (client["tried"] or {}).get("by") == "tests"
    ]
    return [
        client
        for client in tested
        if all(file["format"] == "python" for file in command("clients", client)["files"])
    ]


GUIDES = _guides()


def test_there_are_guides_to_test() -> None:
    assert GUIDES


@pytest.mark.parametrize("model", [ALPHA, BETA])
@pytest.mark.parametrize("client", GUIDES)
def test_the_program_of_a_guide_prints_the_response(client, model, tmp_path) -> None:
    setup = command("clients", client, "--model", model)
    key = create_account().key
    keys = {name: key for name in ["GATEWAY_KEY", *setup["key_environment"]]}
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **setup["environment"], **keys}
    for file in setup["files"]:
        (tmp_path / file["path"]).write_text(file["text"])
        run = [sys.executable, file["path"]]
        done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "Say hello" in done.stdout, "the simulated vendor repeats the prompt"
