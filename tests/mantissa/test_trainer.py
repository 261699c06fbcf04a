"""The monitor in transformers' Trainer, and with two processes under DDP and FSDP."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

import mantissa
from analyzers.language_models.samples import sample_folder
from mantissa.training import Look, MantissaCallback
from tests.mantissa.test_monitor import equal

# By transformers and torch, of their own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def trainer(folder: Path, steps: int = 6, dtype: torch.dtype = torch.float32, rate: float = 1e-4) -> Trainer:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(sample_folder("tiny-bf16"), dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 512, (24, 16), generator=generator).tolist()]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        learning_rate=rate,
        logging_steps=1,
        save_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(model, arguments, train_dataset=cast(Any, rows))


def losses(trained: Trainer) -> list[float]:
    return [each["loss"] for each in trained.state.log_history if "loss" in each]


def test_a_run_logs_what_sparsity_says_of_its_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, watched = trainer(tmp_path / "plain"), trainer(tmp_path / "watched")
    cast(Any, watched.model).save_pretrained(tmp_path / "start")
    callback = MantissaCallback(watched, every=3, share=1)
    watched.add_callback(callback)
    plain.train()
    watched.train()
    assert losses(plain) == losses(watched) and len(losses(plain)) == 6
    assert all(torch.equal(a, b) for a, b in zip(*(cast(Any, each.model).parameters() for each in (plain, watched)), strict=True))

    middle, end = (tmp_path / "watched" / f"checkpoint-{step}" for step in (3, 6))
    first, second = callback.looks
    equal(first, mantissa.sparsity(tmp_path / "start", middle, mode="exact"))
    equal(second, mantissa.sparsity(tmp_path / "start", end, mode="exact"))
    last = mantissa.sparsity(middle, end, mode="exact")
    assert (second.total.changed_since_last, second.total.swallowed_since_last) == (last.num_changed, last.swallowed.count)
    logged = [each for each in watched.state.log_history if "mantissa/changed" in each]
    assert [each["step"] for each in logged] == [3, 6]
    assert [each["mantissa/changed"] for each in logged] == [first.total.changed_share, second.total.changed_share]


def test_a_run_in_pure_bf16_logs_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watched = trainer(tmp_path, steps=4, dtype=torch.bfloat16, rate=1e-6)
    callback = MantissaCallback(watched, every=1, path=str(tmp_path / "looks.jsonl"))
    watched.add_callback(callback)
    watched.train()
    logged = [each for each in watched.state.log_history if "mantissa/lost_share" in each]
    assert [each["mantissa/lost_share"] for each in logged] == [look.total.lost_share for look in callback.looks]
    assert all(each["mantissa/lost_share"] > 0.95 for each in logged) and len(logged) == 4
    for each in logged:
        names = {name.removeprefix("mantissa/") for name in each if name.startswith("mantissa/")}
        assert len(names) <= 12 and "swallowed" not in names and {"intended", "lost_norm", "drift"} <= names
    assert Look.model_validate_json((tmp_path / "looks.jsonl").read_text().splitlines()[-1]) == callback.looks[-1]
    assert capsys.readouterr().out.count("mantissa: At this step bf16 lost 9") == 1


@pytest.mark.exhaustive
def test_a_run_that_resumes_says_where_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer(tmp_path, steps=3).train()
    resumed = trainer(tmp_path, steps=6)
    callback = MantissaCallback(resumed, every=3)
    resumed.add_callback(callback)
    resumed.train(resume_from_checkpoint=True)
    (look,) = callback.looks
    assert (look.start, look.step) == (3, 6) and not any("joined" in message for message in look.messages)
    said = "mantissa: The monitor was attached at step 3: its start is that step, and not the beginning of the training."
    assert said in capsys.readouterr().out
