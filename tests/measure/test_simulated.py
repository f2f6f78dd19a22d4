"""The known figures of Llama 2 7B, the table of models, and what each strategy saves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.measure import models
from torch import nn

from inbackward import Implementation
from inbackward.cli import main
from inbackward.measure import Memory, Setup, simulate_memory
from inbackward.measure.architectures import MODELS, Decoder, Shape
from inbackward.measure.memory import MIB
from inbackward.optimizer.ready import Ready

# As published with the weights, by the sum of their tensors.
PARAMETERS = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}
TINY = Shape(layers=2, width=64, hidden=128, heads=4, kv_heads=2, vocabulary=300)
SMALL: dict[str, Any] = {"sequence_length": 16}
PAGE = Path(__file__).parents[2] / "docs" / "memory.md"


def tiny() -> nn.Module:
    return Decoder(TINY)


def test_the_known_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, plot = tmp_path / "memory.json", tmp_path / "memory.svg"
    line = "memory --model llama2-7b --dtype bf16 --strategy fsdp2 --world-size 2"
    assert main([*line.split(), "--json", str(file), "--plot", str(plot)]) == 0
    figures = json.loads(file.read_text())
    assert figures["gradient_per_layer_mib"] == 193.01
    plain, in_backward = figures["plain"], figures["in_backward"]
    assert round(plain["gradient_at_peak_mib"]) == 5790
    assert plain["gradient_at_peak_mib"] / figures["gradient_per_layer_mib"] == pytest.approx(30, abs=1e-3)
    assert in_backward["gradient_at_peak_mib"] == 0
    assert (round(plain["total_peak_mib"]), round(in_backward["total_peak_mib"])) == (27_619, 22_293)
    assert plain["gradient_peak_mib"] == pytest.approx(2 * PARAMETERS["llama2-7b"] / 2 / MIB, abs=0.01)
    printed = capsys.readouterr()
    assert f"```text\n{printed.out}```" in PAGE.read_text(encoding="utf-8")  # as the page quotes it
    assert not printed.err
    drawn = plot.read_text()
    assert all(text in drawn for text in ("all memory, GiB on a rank", ">plain<", ">in-backward<", "27.0", "21.8"))
    assert {path.name for path in tmp_path.iterdir()} == {file.name, plot.name}


def test_without_activation_checkpointing_the_total_hardly_falls() -> None:
    """The same at an eighth of the layers: the peak lies where activations do, when one layer's gradients exist."""
    shape = replace(MODELS["llama2-7b"], layers=4)
    found = simulate_memory(lambda: Decoder(shape), Setup(strategy="fsdp2", activation_checkpointing=False))
    assert round(found.saved / MIB) == 183
    assert found.plain.peak.gradient == found.gradient_per_layer


def test_every_model_has_its_published_number_of_parameters() -> None:
    with torch.device("meta"):
        assert {n: sum(p.numel() for p in Decoder(s).parameters()) for n, s in MODELS.items()} == PARAMETERS


def total_gradients(model: nn.Module) -> int:
    return sum(p.nbytes for p in model.to(torch.bfloat16).parameters() if p.requires_grad)


def gradients(found: Memory) -> tuple[int, int]:
    return found.plain.gradient_peak, found.in_backward.gradient_peak


def test_on_one_process() -> None:
    plain, in_backward = gradients(simulate_memory(tiny, Setup(**SMALL)))
    assert plain == total_gradients(tiny())
    assert in_backward <= 2 * 2 * TINY.width * TINY.vocabulary  # two of the largest


@pytest.mark.parametrize("ranks", [1, 3, 4096])
def test_fully_sharded(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer's gradients and no more, however many ranks there are, some of which have no part of a parameter."""
    setup = Setup(strategy="fsdp2", world_size=ranks, **SMALL)
    found = simulate_memory(tiny, setup)
    plain, in_backward = gradients(found)
    assert plain >= total_gradients(tiny()) / ranks
    assert in_backward == max(found.gradient_per_layer, _root_gradients(found, plain))
    if ranks == 1:  # a layer's gradients lie in one storage, which those that wait in a bucket would keep
        monkeypatch.setattr(Ready, "_completes_a_storage", lambda self, p: False)
        assert gradients(simulate_memory(tiny, setup))[1] > in_backward


def _root_gradients(found: Memory, plain: int) -> int:
    return plain - sum(found.layer_bytes)


def test_hybrid_sharding_keeps_what_it_reduces() -> None:
    """``fully_shard`` holds the input of each layer's all-reduce until the backward ends, whoever has used it."""
    found = simulate_memory(tiny, Setup(strategy="hsdp", world_size=8, shard_size=4, **SMALL))
    plain, in_backward = gradients(found)
    assert plain == in_backward == total_gradients(tiny()) / 4


def test_buckets_of_ddp_stay() -> None:
    def build() -> nn.Module:
        return Decoder(Shape(layers=4, width=1024, hidden=4096, heads=8, kv_heads=8, vocabulary=64))

    found = simulate_memory(build, Setup(strategy="ddp", **SMALL))
    everything, (plain, in_backward) = total_gradients(build()), gradients(found)
    assert plain == 2 * everything
    assert everything < in_backward < 1.4 * everything
    assert found.in_backward.points[0].gradient == everything


def test_micro_batches_keep_all_gradients() -> None:
    plain, in_backward = gradients(simulate_memory(tiny, Setup(micro_batches=2, **SMALL)))
    assert in_backward >= total_gradients(tiny())
    assert plain >= total_gradients(tiny())


def test_an_implementation_that_frees_nothing_saves_nothing() -> None:
    keeps = Implementation(build=lambda model, groups, cls, kwargs: cls(groups, **kwargs))
    found = simulate_memory(tiny, Setup(**SMALL), keeps)
    assert found.saved == 0
    assert found.plain.gradient_peak == found.in_backward.gradient_peak


def test_tied_and_frozen_parameters_and_buffers() -> None:
    plain, _ = gradients(simulate_memory(models.gpt2, Setup(strategy="fsdp2", **SMALL)))
    assert plain == total_gradients(models.gpt2()) / 2  # the tied one once
    plain, _ = gradients(simulate_memory(models.odd, Setup(**SMALL)))
    model = models.odd()
    assert plain == total_gradients(model) - sum(p.nbytes for p in model.unused.parameters())  # type: ignore[union-attr]


def test_nothing_is_left_behind() -> None:
    resize, rebuild = torch.UntypedStorage.resize_, dist.Reducer._rebuild_buckets
    with pytest.raises(ZeroDivisionError):
        simulate_memory(lambda: 1 // 0, Setup(strategy="ddp"))  # type: ignore[arg-type,return-value]
    assert not dist.is_initialized()
    assert (torch.UntypedStorage.resize_, dist.Reducer._rebuild_buckets) == (resize, rebuild)


def test_a_process_group_that_exists_is_not_touched() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="there is a default process group already; simulate in a process"):
            simulate_memory(tiny, Setup(strategy="fsdp2"))
        assert dist.get_backend() == "gloo"
    finally:
        dist.destroy_process_group()
