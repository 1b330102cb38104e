"""`--precision auto`: bfloat16 on devices that compute in it, and a run keeps its precision."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import manyviews as mv
from manyviews.api import train
from manyviews.models import MultiViewModel, ViewBatch
from manyviews.report.rerun import describe_run, diff_fields
from manyviews.report.summary import load_summaries
from manyviews.reproduce import EXPERIMENTS, ReproduceOptions
from manyviews.reproduce.store import TrialStore
from manyviews.reproduce.trials import Trial
from manyviews.training import RECIPES, Config, ConfigError, TrainingInterrupted, fabric, resolve_precision
from manyviews.utils import devices, has_native_bfloat16
from tests.helpers.tiny_run import assert_same_run, tiny_config
from tests.training.test_trainer import stop_after

CPU = torch.device("cpu")
AUTO = tiny_config(precision="auto")


def simulate_cpu(monkeypatch: pytest.MonkeyPatch, features: str = "avx2 avx512_bf16") -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(features.split(), True), raising=False)


@pytest.mark.parametrize(
    ("features", "is_native"),
    [("avx2 avx512_f avx512_vnni", False), ("avx512_bf16", True), ("amx_tile amx_bf16", True), ("neon bf16", False)],
)
@pytest.mark.parametrize("has_capabilities", [True, False])
def test_native_bfloat16_of_a_cpu_follows_from_its_features(
    features: str, is_native: bool, has_capabilities: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate_cpu(monkeypatch, features)
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(devices, "CPU_INFO", file)
    if not has_capabilities:  # as in torch 2.4
        monkeypatch.delattr(torch.cpu, "get_capabilities")
        assert not has_native_bfloat16(CPU)  # not on Linux
        file.write_text(f"processor\t: 0\nflags\t\t: fpu {features}\nbugs\t\t: none\n")
    assert has_native_bfloat16(CPU) == is_native
    assert not has_native_bfloat16(torch.device("mps"))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not has_native_bfloat16(CPU)


def test_unsupported_features_are_not_native(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_cpu(monkeypatch)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False, "num_sockets": 1})
    assert not has_native_bfloat16(CPU)


@pytest.mark.parametrize(
    ("capabilities", "hip", "is_native"),
    [([(7, 5)], None, False), ([(8, 0)], None, True), ([(9, 0), (7, 0)], None, False), ([(7, 5)], "6.0", True)],
)
def test_native_bfloat16_of_gpus_is_that_of_the_oldest(
    capabilities: list[tuple[int, int]], hip: str | None, is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert has_native_bfloat16(torch.device("cuda")) == is_native


@pytest.mark.parametrize("is_native", [True, False])
def test_auto_is_bfloat16_where_it_is_native_and_recorded(
    is_native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate_cpu(monkeypatch, "avx512_bf16" if is_native else "avx512_f")
    expected, dtypes = "bf16-mixed" if is_native else "32", set()
    original = MultiViewModel.forward

    def forward(self: MultiViewModel, batch: ViewBatch) -> Any:
        output = original(self, batch)
        if self.training:
            dtypes.add(output.h.dtype)
        return output

    monkeypatch.setattr(MultiViewModel, "forward", forward)
    run = train(dataclasses.replace(AUTO, epochs=1), output=tmp_path / "run")
    assert mv.Run.open(run.path).config.precision == expected
    assert dtypes == {torch.bfloat16 if is_native else torch.float32}
    assert f"1 CPU thread, precision {expected}\n" in capsys.readouterr().err
    (summary,) = load_summaries([run.path])
    assert f"precision {expected}," in describe_run(summary)["training"]
    assert "precision" not in diff_fields(summary.run.config, RECIPES["photos"])
    assert "precision" in diff_fields(dataclasses.replace(run.config, precision="64"), RECIPES["photos"])
    encoder = run.load_encoder()
    assert encoder(torch.rand(2, 3, 16, 16)).dtype == torch.float32
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}


@pytest.mark.parametrize("precision", ["32", "bf16-mixed", "64"])
def test_explicit_precision_stays(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_cpu(monkeypatch)
    assert resolve_precision(Config(precision=precision), CPU).precision == precision


@pytest.mark.slow
@pytest.mark.parametrize("is_native", [True, False])
def test_a_run_resumed_on_another_machine_keeps_its_precision(
    is_native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = ["avx512_f", "avx512_bf16"]
    with monkeypatch.context() as machine:
        simulate_cpu(machine, features[is_native])
        whole = train(AUTO, output=tmp_path / "whole", quiet=True)
        stop_after(machine, 7)
        with pytest.raises(TrainingInterrupted):
            train(AUTO, output=tmp_path / "stopped", quiet=True)
    simulate_cpu(monkeypatch, features[not is_native])
    train(AUTO, resume=tmp_path / "stopped", quiet=True)  # auto does not change the precision of a run
    assert_same_run(whole.path, tmp_path / "stopped")
    other = "32" if is_native else "bf16-mixed"
    with pytest.raises(ConfigError, match=f"precision .* -> {other}"):
        train(dataclasses.replace(AUTO, precision=other), resume=whole.path, quiet=True)


@pytest.mark.parametrize("num_native", [0, 1, 2])
def test_ranks_of_different_precision_are_refused(num_native: int) -> None:
    stub: Any = SimpleNamespace(
        device=CPU, world_size=2, global_rank=1, all_reduce=lambda _, reduce_op: torch.tensor(float(num_native))
    )
    if num_native != 1:
        fabric._check_precision(stub, "32")
        return
    with pytest.raises(ConfigError, match="auto is 32 on rank 1, and another one on other ranks: use --precision 32"):
        fabric._check_precision(stub, "32")


def test_trials_of_different_precision_have_different_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = {name: Trial(Config(views=2, precision=name)).name for name in ("32", "bf16-mixed")}  # type: ignore[arg-type]
    assert len(set(names.values())) == 2
    for features, precision in (("avx512_f", "32"), ("avx512_bf16", "bf16-mixed")):
        simulate_cpu(monkeypatch, features)
        trial = Trial(Config(views=2, device="cpu"))
        assert trial.name == names[precision]
        assert Config.from_yaml(trial.to_spec(TrialStore(tmp_path))["config"]).precision == precision


def test_tables_have_32_bits_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_names(options: ReproduceOptions) -> list[str]:
        return [trial.name for trial in EXPERIMENTS["table1"].make_trials(options)]

    names = list_names(ReproduceOptions())
    simulate_cpu(monkeypatch)
    assert list_names(ReproduceOptions()) == names
    assert not set(list_names(ReproduceOptions(precision="auto"))) & set(names)
