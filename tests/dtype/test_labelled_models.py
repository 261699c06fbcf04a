"""Labels from a file: what they change, and every file that cannot be used."""

from pathlib import Path

import pytest

from analyzers.core.errors import InvalidRequest
from analyzers.dtype.labelled_models import Example
from tools.classifier import check, examples


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "labels.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def by_model(found: tuple[Example, ...]) -> dict[str, Example]:
    return {example.model: example for example in found}


def test_labels_of_a_file_go_first_and_may_bring_extremes(tmp_path: Path) -> None:
    text = (
        "\ufeffmodel_id,training_precision,abs_min,abs_max,norm_min,norm_max,contributor\n"
        "FACEBOOK/opt-1.3b,bf16-mixed,,,,,a\n"
        "new/model,fp32,0,2.5,0.1,300,b\n"
        "new/without,fp32,,2.5,0.1,300,b\n"
        "new/narrow,fp8-mixed,0,2.5,0.1,300,b\n"
        "google-t5/t5-small,mxfp4-post-trained,,,,,c\n"
    )
    found, plain = by_model(examples(write(tmp_path, text))), by_model(examples())
    assert len(plain) == 29
    assert found["facebook/opt-1.3b"].precision == "bf16" and plain["facebook/opt-1.3b"].precision == "fp16"
    new = found["new/model"]
    assert (new.family, new.precision, new.abs_min, new.abs_max, new.norm_min, new.norm_max) == ("new", "fp32", 0, 2.5, 0.1, 300)
    assert plain.keys() - found.keys() == {"google-t5/t5-small"} and found.keys() - plain.keys() == {"new/model"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have the columns"),
        ("model_id,precision\na/b,fp16\n", "must have the columns"),
        ("model_id,training_precision\na/b,fp16\nA/B,bf16\n", "Line 3 of labels.csv contradicts"),
        ("model_id,training_precision,abs_min,abs_max,norm_min,norm_max\na/b,fp16,0,x,1,1\n", "gives 'x' as a magnitude"),
        ("model_id,training_precision,abs_min,abs_max,norm_min,norm_max\na/b,fp16,0,1,1,inf\n", "gives 'inf' as a magnitude"),
        ("model_id,training_precision,abs_min,abs_max,norm_min,norm_max\na/b,fp16,-1,1,1,1\n", "gives '-1' as a magnitude"),
        (b"model_id,training_precision\n\xff\xfe,fp16\n", "not CSV in UTF-8"),
        ("model_id,training_precision\n" + "a" * 200_000 + ",fp16\n", "not CSV in UTF-8"),
    ],
)
def test_files_that_are_no_labels(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        examples(write(tmp_path, text))
    assert str(tmp_path) not in str(caught.value)


def test_too_few_families_cannot_be_judged() -> None:
    known = examples()
    check(known)
    for family in ("t5", "pegasus", "gpt-neo"):  # the three that are bf16
        with pytest.raises(InvalidRequest, match="2 families of models with extremes are labelled bf16"):
            check([example for example in known if example.family != family])
    few = [e.model_copy(update={"family": f"{i % 3}", "precision": ("fp16", "bf16")[i // 3 % 2]}) for i, e in enumerate(known)]
    with pytest.raises(InvalidRequest, match="fewer than 4 families"):
        check(few)
