"""What models are to each other: models of known descent in every order, and inputs that cannot be compared."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

import mantissa
from analyzers.__main__ import main
from analyzers.checkpoints import Access
from analyzers.comparison.compare import CompareReport, CompareRequest, analyze
from analyzers.core.errors import MantissaError
from analyzers.core.request import Progress, request_error
from tests.hub import LocalHub
from tests.parents import quantized_files
from tests.parents.checkpoints import BF16, F32, Folder, Tensors, model, stacked, tuned

FIRST, SECOND = model(10), model(11)
CHILD = tuned(FIRST, 0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def compared(*models: str, **options: Any) -> CompareReport:
    *steps, report = analyze(CompareRequest(models=models, **options), Access(local=True))
    assert isinstance(report, CompareReport)
    done = [step.done for step in steps if isinstance(step, Progress)]
    assert len(done) == len(steps) and done == sorted(done) and report.bytes_read >= done[-1]
    assert CompareReport.model_validate_json(report.model_dump_json()).model_dump() == report.model_dump()
    assert all(frame.columns.size for frame in report.tables().values())
    return report


def refused(*models: str) -> str:
    try:
        with pytest.raises(MantissaError) as caught:
            compared(*models)
        said = str(caught.value)
    except ValidationError as error:
        said = str(request_error(error))
    assert said.isprintable() and said.endswith(".") and len(said) < 600
    return said


@pytest.mark.parametrize("mode", ["quick", pytest.param("exact", marks=pytest.mark.exhaustive)])
def test_a_fine_tune_has_its_share_of_changed_weights_and_no_direction_of_its_own(folder: Folder, mode: Any) -> None:
    base, child = folder.write("base", FIRST), folder.write("child", CHILD)
    moved = sum(int((FIRST[name] != CHILD[name]).sum()) for name in FIRST)
    for models in ((base, child), (child, base)):
        report = compared(*models, mode=mode)
        relation, counted = report.relation, report.sparsity
        assert relation.kind == "derived" and (relation.model, relation.sources) == (models[1], (models[0],))
        assert (
            counted is not None
            and counted.num_changed == moved
            and relation.changed_share == pytest.approx(moved / counted.total_parameters)
        )
        assert (relation.direction, report.answer.code) == ("assumed", "pair") and report.parents.mode == counted.mode == mode


def test_a_part_is_said_to_be_a_part(folder: Folder) -> None:
    more = CHILD | {"model.extra.weight": torch.ones(512, 512, dtype=BF16)}
    report = compared(folder.write("base", FIRST), folder.write("child", more))
    assert not report.whole and report.headline.endswith(report.suffix()) and report.suffix()


def test_what_the_last_model_is_not_related_to_does_not_hide_a_relation(folder: Folder) -> None:
    base, child, other = folder.write("base", FIRST), folder.write("child", CHILD), folder.write("other", SECOND)
    report = compared(base, child, other)
    assert report.relation.kind == "derived" and {report.relation.model, *report.relation.sources} == {base, child}
    assert [note.values["names"] for note in report.notes if note.code == "no-relation"] == [(other,)]


def test_the_middle_of_a_run_of_few_changes_is_no_merge(folder: Folder) -> None:
    """Its values are those of the start or of the end, as in a merge of sparse updates."""
    generator = torch.Generator().manual_seed(4)

    def step(base: Tensors) -> Tensors:
        return {name: torch.where(torch.rand(x.shape, generator=generator) < 0.004, (1.05 * x).to(BF16), x) for name, x in base.items()}

    middle = step(FIRST)
    names = [folder.write(name, tensors) for name, tensors in (("start", FIRST), ("middle", middle), ("end", step(middle)))]
    report = compared(*names)
    assert (report.relation.kind, report.relation.model, report.relation.direction) == ("derived", names[2], "assumed")
    assert report.sparsity is not None and [side.ref for side in report.sparsity.tuned] == names[1:]


@pytest.mark.parametrize("size", [0.01, 0.1])
def test_a_base_beside_its_fine_tunes_is_no_merge_of_them(folder: Folder, size: float) -> None:
    models = [
        folder.write(name, tensors) for name, tensors in (("t1", tuned(FIRST, size, 21)), ("t2", tuned(FIRST, size, 22)), ("base", FIRST))
    ]
    for order in ((0, 1, 2), (2, 0, 1)):
        relation = compared(*(models[number] for number in order)).relation
        assert (relation.kind, relation.direction) == ("derived", "assumed")


@pytest.mark.parametrize("order", ["mixed first second", "mixed second first", "first second mixed"])
def test_a_stack_of_two_models_is_mapped_wherever_it_stands(folder: Folder, order: str) -> None:
    """Layers are numbered as those of the model that is explained, whichever was read first."""
    paths = {"first": folder.write("first", FIRST), "second": folder.write("second", SECOND)}
    paths["mixed"] = folder.write("mixed", stacked((FIRST, 0, 3), (SECOND, 1, 4)))
    report = compared(*(paths[name] for name in order.split()), mode="exact")
    assert report.relation.kind == "stack" and report.parents.checkpoint.ref == paths["mixed"] and report.answer.code == "stack"
    rows = [(row.layer, row.ref, row.source) for row in report.parents.layer_map if row.layer is not None]
    assert rows == [*((n, paths["first"], n) for n in range(3)), *((n + 2, paths["second"], n) for n in range(1, 4))]
    assert report.parents.advice.code == "list-layers"


def test_two_quantized_copies_are_not_copies_of_each_other(folder: Folder) -> None:
    seven, five = ({name: _in_steps(tensor, steps) for name, tensor in FIRST.items()} for steps in (7, 5))
    source, paths = folder.write("source", FIRST), [folder.write("seven", seven), folder.write("five", five)]
    for models in (paths, paths[::-1]):
        assert compared(*models, mode="exact").relation.kind == "derived"
    assert all(compared(source, path, mode="exact").relation.kind == "quantized-copy" for path in paths)


@pytest.mark.parametrize("mode", ["quick", "exact"])
def test_quantized_copies_are_ranked(folder: Folder, mode: Any) -> None:
    source, wide = folder.write("source", FIRST), quantized_files.fp8(folder.folder / "wide", FIRST)
    narrow = quantized_files.nvfp4(folder.folder / "narrow", FIRST)
    part = quantized_files.nvfp4(folder.folder / "part", FIRST, kept=lambda name: "layers.0" in name)
    for models in ((source, narrow, wide, part), (part, narrow, wide, source)):
        report = compared(*models, mode=mode)
        assert (report.relation.kind, report.relation.sources, report.relation.direction) == ("quantized-copy", (source,), "shown")
        assert report.copies[0].ref == wide == report.relation.model
        sizes = {row.ref: (row.bytes, row.bits_per_weight) for row in report.copies}
        assert sizes[narrow] < sizes[part] < sizes[wide]
        error = {row.ref: row.error * 2**row.bits_per_weight for row in report.copies if row.error is not None}
        best = min(error, key=error.__getitem__)
        assert all(row.for_its_size == pytest.approx(error[row.ref] / error[best]) for row in report.copies)
        assert report.answer.values["nearest"] == wide and report.answer.values["best"] == best


def test_lost_rows_are_damage_and_neither_pruning_nor_an_update(folder: Folder) -> None:
    lost = {name: tensor.clone() for name, tensor in FIRST.items()}
    name = next(name for name, tensor in lost.items() if tensor.ndim == 2 and "layers.1" in name)
    lost[name][len(lost[name]) // 2 :] = 0
    report = compared(folder.write("first", FIRST), folder.write("lost", lost), mode="exact")
    assert report.answer.code == "damaged" and report.advice.code == "repair"
    assert [row.name for row in report.parents.conversion if row.relation == "truncated"] == [name]


def test_values_that_overflow_or_vanish_are_named(folder: Folder) -> None:
    wide = {name: tensor.to(F32) for name, tensor in FIRST.items()}
    large, small = [name for name, tensor in wide.items() if tensor.ndim == 2 and "layers" in name][:2]
    wide[large][0, :3] = 1e5
    wide[small] *= 1e-7
    narrow = {name: tensor.to(torch.float16) for name, tensor in wide.items()}
    report = compared(folder.write("wide", wide), folder.write("narrow", narrow), mode="exact")
    rows = {row.name: row for row in report.parents.conversion}
    assert (rows[large].relation, rows[large].exceptions) == ("non-finite", 3)
    zeros = int(((narrow[small] == 0) & (wide[small] != 0)).sum())
    note = rows[small].note
    assert rows[small].relation == "rounded" and note is not None and note.values == {"values": zeros}


@pytest.mark.parametrize("block", [1, 16])
def test_factors_of_rows_and_blocks_are_no_training(folder: Folder, block: int) -> None:
    scaled, generator = {name: tensor.clone() for name, tensor in FIRST.items()}, torch.Generator().manual_seed(0)
    for name, tensor in scaled.items():
        if tensor.ndim == 2 and "layers" in name:
            rows = torch.rand(len(tensor) // block, 1, generator=generator).repeat_interleave(block, 0) + 1
            scaled[name] = (tensor * rows).to(tensor.dtype)
    report = compared(folder.write("first", FIRST), folder.write("scaled", scaled), mode="exact")
    assert {row.relation for row in report.parents.conversion} == {"affine", "equal"} and report.answer.code == "scaled"


def _in_steps(tensor: torch.Tensor, steps: int) -> torch.Tensor:
    """Quantize rows of matrices to integers up to ``steps``."""
    if tensor.ndim < 2:
        return tensor
    scale = tensor.to(F32).abs().amax(dim=-1, keepdim=True) / steps
    return ((tensor.to(F32) / scale).round() * scale).to(tensor.dtype)


def test_what_cannot_be_compared_is_one_sentence(folder: Folder) -> None:
    first, other = folder.write("first", FIRST), folder.write("other", {"a.b": torch.ones(7, 5)})
    assert "There is nothing to compare" in refused(first, other)
    assert "is named 2 times: name different models" in refused(first, first)
    assert refused(first, f"{folder.folder}/nothing").startswith("Model 2: ")
    broken = folder.write("broken", FIRST)
    file = Path(broken) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    assert refused(broken, first).startswith("Model 1: ")
    adapter = folder.folder / "adapter"
    adapter.mkdir()
    save_file(
        {"base_model.model.x.lora_A.weight": torch.ones(4, 8), "base_model.model.x.lora_B.weight": torch.ones(8, 4)},
        adapter / "adapter_model.safetensors",
    )
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    assert "adapter" in refused(first, str(adapter))


def test_one_checkpoint_under_two_names_is_refused(hub: LocalHub, folder: Folder) -> None:
    hub.add("org/x", {path.name: path for path in Path(folder.write("x", FIRST)).iterdir()})
    assert refused("org/x", "org/x@main").startswith("Model 2, org/x, is the same checkpoint as one before it")


def test_one_model_is_compared_with_those_of_its_card(hub: LocalHub, folder: Folder) -> None:
    hub.add("org/base", {path.name: path for path in Path(folder.write("base", FIRST)).iterdir()})
    files = {path.name: path for path in Path(folder.write("child", CHILD)).iterdir()}
    hub.add("org/child", files | {"README.md": b"---\nbase_model: org/base\n---\n"})
    report = compared("org/child")
    assert (report.relation.model, report.relation.sources, report.relation.direction) == ("org/child", ("org/base",), None)
    assert report.parents.candidates[0].source == "card" and report.subject() == {"models": "org/child, org/base"}


def test_the_command_and_the_function_give_the_same_report(capsys: pytest.CaptureFixture[str]) -> None:
    models = "sample:tiny-bf16", "sample:tiny-tuned"
    assert main(["compare", *models, "--exact", "--json"]) == 0
    report = CompareReport.model_validate_json(capsys.readouterr().out)
    found = mantissa.compare(*models, mode="exact")
    assert found.id == report.id and found.relation == report.relation and mantissa.read_report(found.model_dump_json()).id == found.id
    assert main(["compare", *models[::-1], "--exact", "--json"]) == 0 and json.loads(capsys.readouterr().out)["id"] != report.id
    assert main(["compare", *models]) == 0 and report.headline in capsys.readouterr().out.splitlines()


def test_a_copy_is_not_called_a_fine_tune_and_a_rounded_one_not_as_good_as_the_other() -> None:
    report = compared("sample:tiny-bf16-as-fp32", "sample:tiny-bf16-as-fp16")
    assert (report.answer.code, report.advice.code, report.advice.values["formats"]) == ("same-rounded", "keep-unrounded", ("fp16",))
    assert compared("sample:tiny-bf16", "sample:tiny-bf16-as-fp32").advice.code == "use-either"


def test_a_run_has_the_overlap_and_the_rows_that_sparsity_counts() -> None:
    """Both say what changed since the first model, whichever side the pass begins with."""
    models = [f"sample:tiny-{name}" for name in ("bf16", "step-1", "step-2", "step-3")]
    compared, changes = mantissa.compare(*models, mode="exact").sparsity, mantissa.sparsity(*models, mode="exact")
    assert compared is not None and compared.overlap == changes.overlap and len(changes.overlap) == 3
    assert [row.changed_rows for row in compared.tensors] == [row.changed_rows for row in changes.tensors]


def notes(report: CompareReport) -> dict[str, Any]:
    return {note.code: note.values.get("names") for note in report.notes}


def test_what_is_no_copy_is_named_beside_those_that_are_ranked(folder: Folder) -> None:
    source, one = folder.write("source", FIRST), quantized_files.fp8(folder.folder / "one", FIRST)
    two, other = quantized_files.nvfp4(folder.folder / "two", FIRST), quantized_files.gptq(folder.folder / "other", tuned(FIRST, 0.05))
    ranked = compared(source, one, two, other, mode="exact")
    assert [row.ref for row in ranked.copies] == [one, two, other] and notes(ranked)["not-copies"] == (other,)
    assert [row.why and row.why.code for row in ranked.copies] == [None, None, "quantized-trained"] and ranked.copies[2].error is None
    single = compared(source, one, other, mode="exact")
    assert (single.relation.kind, single.relation.model, notes(single)["not-copies"]) == ("quantized-copy", one, (other,))


def test_copies_with_scaled_channels_are_ranked_by_what_is_left(folder: Folder) -> None:
    source, plain = folder.write("source", FIRST), quantized_files.gptq(folder.folder / "plain", FIRST, calibrated=False)
    report = compared(source, plain, quantized_files.awq(folder.folder / "scaled", FIRST), mode="exact")
    assert {row.method for row in report.copies} == {"GPTQ INT4", "AWQ INT4"}
    errors = [row.error for row in report.copies if row.error is not None]
    assert len(errors) == 2 and max(errors) < 1.5 * min(errors)
