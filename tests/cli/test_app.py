"""The command itself: how it is called, how it ends, and what it does without."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import RECORDINGS, sluice

from sluice import __version__ as version
from sluice.cli.app import _parser, leaves, main
from sluice.cli.options import given_options

ROOT = Path(__file__).parents[2]
CHECKPOINT = RECORDINGS / "polling" / "checkpoint"
COMMANDS = [path.split() for path, _ in leaves()]
EXIT_CODES = (
    "0 all is well",
    "1 the output names a problem",
    "2 the command line",
    "3 the command could not",
)


def parse(arguments: list[str]) -> argparse.Namespace:
    return _parser().parse_args(arguments)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_has_help_json_and_exit_codes(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())

    assert ended.value.code == 0
    assert "--json" in shown
    assert f"Example: sluice {' '.join(command)} " in shown
    for sentence in EXIT_CODES:
        assert sentence in shown
    example = shown.split("Example: ")[1].split(" Exit codes: ")[0].split()
    parse(example[1:])


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ([], ""),
        (["offsets"], "offsets"),
        (["nosuch"], ""),
        (["offsets", "show"], "offsets show"),
        (["check", "--nosuch"], "check"),
        (["--region", "eu-west-1", "offsets", "show", "c", "--nosuch"], "offsets show"),
        (["offsets", "reset", "c", "--to-latest", "--to-trim-horizon"], "offsets reset"),
    ],
)
def test_a_wrong_command_line_ends_with_two(arguments: list[str], command: str) -> None:
    """With its usage on standard error, and an object where one was asked for."""
    done = sluice(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.errors.startswith(f"usage: sluice {command}".strip())

    as_json = sluice(*arguments, "--json")
    assert (as_json.code, as_json.value["ok"]) == (2, False)
    assert as_json.value["command"] == command
    assert as_json.value["error"] in as_json.errors


def test_each_object_says_its_command_and_whether_all_is_well(tmp_path: Path) -> None:
    fine = sluice("offsets", "show", CHECKPOINT, "--json").value
    assert (fine["command"], fine["ok"]) == ("offsets show", True)

    problem = sluice("offsets", "show", tmp_path, "--json").value
    assert (problem["command"], problem["ok"]) == ("offsets show", False)


def test_options_that_are_wrong_end_with_two() -> None:
    """As in the library, the message names the option and what is allowed, and shows no secret."""
    done = sluice("offsets", "show", CHECKPOINT, "--option", "awsSecretAccessKey=a b", "--json")

    assert done.code == 2
    assert "option 'awsSecretAccessKey' is ***" in done.value["error"]
    assert "a b" not in done.out + done.errors


WITHOUT_SPARK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, Blocker())
import runpy
sys.argv = ["sluice", *sys.argv[1:]]
runpy.run_module("sluice", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["offsets", "show", str(CHECKPOINT), "--json"], 0),
        (["offsets", "reset", str(CHECKPOINT), "--to-trim-horizon", "--offline", "--json"], 0),
        (["offsets", "import", "databricks", str(CHECKPOINT), "--offline", "--json"], 3),
        (["check", "--sink-option=destination=http", "--sink-option=url=http://127.0.0.1:9/", "--json"], 1),
        (["consumers", "list", "--json"], 2),
        (["files", "list", "nosuch", "--json"], 2),
        (["replay", str(CHECKPOINT), "--sink-option=destination=kinesis", "--sink-option=streamName=s"], 0),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_neither_pyspark_nor_a_jvm_is_needed(arguments: list[str], code: int) -> None:
    """In a separate process where neither can be imported, as ``python -m sluice``."""
    done = subprocess.run(
        (sys.executable, "-c", WITHOUT_SPARK, *arguments),
        cwd=ROOT,
        env={"PATH": "/nowhere", "PYTHONPATH": str(ROOT / "src"), "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == code, done.stderr
    assert "not there" not in done.stderr
    if "--json" in arguments:
        assert json.loads(done.stdout)["ok"] is (code == 0)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """``sluice … | head`` ends without a word, with the exit code that it would have had."""
    with subprocess.Popen(
        (sys.executable, "-m", "sluice", "offsets", "show", str(CHECKPOINT), "--json"),
        env={"PATH": "/nowhere", "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


# --- options of the connection -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["--region", "r", "--endpoint-url", "http://e", "offsets", "show", "c"],
        ["offsets", "--region", "r", "show", "c", "--endpoint-url", "http://e"],
        ["offsets", "show", "c", "--option", "REGION=r", "--region", "r", "--option=endpointUrl=http://e"],
        ["--region", "other", "offsets", "show", "c", "--region", "r", "--endpoint-url", "http://e"],
    ],
)
def test_flags_before_and_after_the_command_are_options(arguments: list[str]) -> None:
    found = {key.lower(): value for key, value in given_options(parse(arguments)).items()}
    assert found == {"region": "r", "endpointurl": "http://e"}
    assert given_options(parse(["offsets", "show", "c", "--profile", "p"])) == {"profile": "p"}


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_flag_and_an_option_that_disagree_are_refused(place: str, tmp_path: Path) -> None:
    """In one error that names both, also if the option is in a file."""
    (tmp_path / "options").write_text("region=eu-west-1")
    show, flag = ["offsets", "show", CHECKPOINT, "--options", tmp_path / "options"], ["--region", "us-east-1"]
    done = sluice(*flag, *show) if place == "before" else sluice(*show, *flag)

    assert (done.code, done.out) == (2, "")
    told = "--region is 'us-east-1', and option 'region' is 'eu-west-1': give one of them\n"
    assert done.errors == f"sluice offsets show: {told}"


def test_flags_are_for_source_and_sink() -> None:
    """And are no source by themselves. A command that calls no service refuses them."""
    sink = ["--sink-option", "destination=kinesis", "--sink-option", "streamName=s"]
    parsed = parse(["--region", "eu-west-1", "check", *sink])
    assert given_options(parsed, name="sink-option")["region"] == "eu-west-1"
    assert "give --option or --options for a source" in sluice("check", "--region", "eu-west-1").errors

    for arguments in (["--region", "eu-west-1", "doctor"], ["doctor", "--region", "eu-west-1"]):
        done = sluice(*arguments)
        assert (done.code, done.errors) == (
            2,
            "sluice doctor: --region: 'doctor' calls no service; leave it out\n",
        )


def test_the_version_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"sluice {version}\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sluice off", ["offsets"]),
        ("sluice --region eu-west-1 offsets ", ["show", "reset", "import"]),
        ("sluice offsets reset c --to-t", ["--to-timestamp", "--to-trim-horizon"]),
        ("sluice offsets import k", ["kcl"]),
    ],
)
def test_a_shell_completes(line: str, expected: list[str], tmp_path: Path) -> None:
    """As ``register-python-argcomplete`` asks: in the environment, for an answer in a file."""
    pytest.importorskip("argcomplete")
    answer = tmp_path / "answer"
    environment = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    run("sluice", **environment)
    found = [each.strip() for each in answer.read_text().split("\n")]
    assert set(expected) <= set(found)
    assert all(each.startswith(line.rpartition(" ")[2]) for each in found)


# --- the page ------------------------------------------------------------------------------------------


def test_the_page_has_every_command_and_its_options() -> None:
    """With each option but those that all commands have in common."""
    page = (ROOT / "docs" / "operate.md").read_text()
    for path, parser in leaves():
        assert f"`{path}`" in page or f"sluice {path} " in page, path
        for action in parser._actions:
            for flag in action.option_strings:
                assert flag in ("-h", "--help") or flag in page, f"{path} {flag}"


def test_the_script_is_declared() -> None:
    """``pip install`` makes the command. Python 3.10 has no reader of TOML, so the text is looked at."""
    text = (ROOT / "pyproject.toml").read_text()

    assert '[project.scripts]\nsluice = "sluice.cli.app:main"\n' in text


def run(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command line of a shell, in which ``sluice`` is the command."""
    return subprocess.run(
        ("/bin/sh", "-c", f'sluice() {{ "{sys.executable}" -m sluice "$@"; }}\n{command}'),
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        check=False,
        timeout=120,
    )


SHOW = f"sluice offsets show {CHECKPOINT}"


def test_a_terminal_that_lacks_a_character_gets_all_the_same() -> None:
    """As one with another encoding than UTF-8: by then a command with ``--execute`` has done its work."""
    done = run(SHOW, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u2026" in done.stdout


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (f"{SHOW} >&-", 0, b""),
        (f"{SHOW} 2>&-", 0, b""),
        (f"{SHOW} >/dev/full", 3, b"sluice offsets show: standard output cannot be written: "),
        ("sluice offsets show nosuch --json >/dev/full", 3, b"sluice offsets show: "),
        ("sluice offsets show nosuch >&- 2>&-", 3, b""),
        ("sluice offsets show nosuch --json 2>/dev/full | grep -q error && exit 3", 3, b""),
        ("sluice offsets show \"$(printf 'a\\377b')\"", 3, b"sluice offsets show: a\\udcffb: "),
        ("sluice offsets show 's3://[a/b'", 3, b"sluice offsets show: s3://[a/b: "),
    ],
)
def test_streams_and_names_of_any_kind_end_a_command_in_order(command: str, code: int, said: bytes) -> None:
    """Closed ones, full ones, readers that have read enough, bytes that are no text."""
    done = run(command)

    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    assert done.stderr.count(b"\n") == bool(said)
    assert done.stderr.startswith(said)


def test_an_error_that_nobody_expects_has_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its traceback on standard error, for the report."""

    def fail(_arguments: object) -> None:
        raise KeyError("shard")

    monkeypatch.setattr("sluice.cli.commands.doctor.run", fail)
    done = sluice("doctor", "--json")

    assert done.code == 3
    assert done.value == {
        "command": "doctor",
        "ok": False,
        "error": "unexpected KeyError: 'shard'; please report it",
    }
    assert "Traceback" in done.errors


def test_an_offset_that_is_nested_too_deeply_is_no_offset(tmp_path: Path) -> None:
    """As it would be if it were no JSON at all."""
    checkpoint = shutil.copytree(CHECKPOINT, tmp_path / "c")
    for each in (checkpoint / "offsets").iterdir():
        each.write_text("v1\n{}\n" + "[" * 100_000)

    assert sluice("offsets", "show", checkpoint).code == 0
    done = sluice("offsets", "reset", checkpoint, "--to-latest", "--offline")
    assert (done.code, done.out) == (3, "")
    assert "the checkpoint holds no offsets of Sluice's source" in done.errors


@pytest.mark.parametrize("text", ["awsSecretAccessKey: S3cret/S3cret", "S3cret/S3cret", "=S3cret/S3cret"])
def test_a_file_of_options_in_another_form_shows_no_secret(tmp_path: Path, text: str) -> None:
    """Such as YAML: the error names the line, and nothing of it."""
    file = tmp_path / "options"
    file.write_text(f"region=eu-west-1\n{text}\n")
    done = sluice("offsets", "show", CHECKPOINT, "--options", file, "--json")

    assert done.code == 2
    missing = "key" if text.startswith("=") else "'='"
    assert f"{file}, line 2: expected KEY=VALUE, but the {missing} is missing" in done.errors
    assert "S3cret" not in done.out + done.errors
