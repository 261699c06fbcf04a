"""Attaches the monitor to transformers' Trainer, and to TRL's trainers, which inherit from it."""

import re
import sys
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from analyzers.core.errors import InvalidRequest
from analyzers.core.terminal import print_line
from mantissa.training.measurement import Look
from mantissa.training.monitor import UpdateMonitor


class MantissaCallback(TrainerCallback):
    """A callback that measures every ``every`` steps and logs the results through ``Trainer.log``, for W&B, TensorBoard, trackio, ...

        trainer.add_callback(MantissaCallback(trainer, every=100))

    share, path: see `UpdateMonitor`, which receives the trainer's optimizer; ``path`` also has the figures of each role. looks: the
    measurements so far. New messages are printed.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        every: int = 100,
        share: float = 0.01,
        path: str | None = None,
    ) -> None:
        if any(isinstance(each, MantissaCallback) for each in trainer.callback_handler.callbacks):
            raise InvalidRequest("This trainer has a MantissaCallback already.")
        self.looks: list[Look] = []
        self._trainer = trainer
        self._every = every
        self._options: dict[str, Any] = {"share": share, "path": path}
        self._monitor: UpdateMonitor | None = None
        self._said: set[str] = set()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Attach the monitor to the model that is trained; after a resume, its start is the current step."""
        if self._monitor is not None:  # left over from an interrupted run
            self._monitor.close()
        self._monitor = UpdateMonitor(
            self._trainer.model_wrapped, self._trainer.optimizer, every=self._every, step=state.global_step, **self._options
        )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure if a measurement is due, before the trainer logs and saves."""
        if self._monitor is None or state.global_step % self._every:
            return
        look = self._monitor.look(state.global_step)
        self.looks.append(look)
        due = control.should_log
        self._trainer.log(look.metrics())
        control.should_log = due  # log() clears the flag, as if the trainer's own figures had been logged
        if state.is_world_process_zero:
            for message in look.messages:
                kind = re.sub(r"\d[\d.,]*", "", message)  # the same message with other numbers is not new
                if kind not in self._said:
                    self._said.add(kind)
                    print_line(f"mantissa: {message}", sys.stdout)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Free the monitor's copies."""
        if self._monitor is not None:
            self._monitor.close()
