"""The options of a training run: four frozen dataclasses, checked on construction.

An option is declared once, with its default, help text, range and choices; the command line (``cli``) and the checks
are generated from that. No torch is imported, so that ``beton train --help`` is immediate.

Defaults are the usual ImageNet recipe: SGD with Nesterov momentum, a linear warm-up, a cosine to zero, label
smoothing 0.1, weight decay 5e-5 on all but norms and biases (He et al., arXiv:1812.01187).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

from dataloading import UsageError
from train.devices import REAL, sim_rate
from train.loaders import TRAINING_LOADERS, cannot_train
from train.trackers import tracker_names

STRATEGIES = ("ddp", "fsdp", "hsdp", "zero1", "tp", "pp")
OPTIMIZERS = ("sgd", "adamw", "lamb", "muon")
SCHEDULES = ("cosine", "linear", "step")
PRECISIONS = ("none", "bf16", "fp16")
TAILS = ("auto", "even", "pad", "drop")


def option(
    default: Any,
    help_text: str,
    *,
    choices: Sequence[str] = (),
    short: str = "",
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
) -> Any:
    """Return a dataclass field with the metadata for the command line and the checks."""
    bounds = (("at least", low), ("above", above), ("at most", high))
    return field(
        default=default, metadata={"help": help_text, "choices": tuple(choices), "short": short, "bounds": bounds}
    )


def _fail(name: str, value: object, rule: str) -> UsageError:
    return UsageError(f"--{name.replace('_', '-')} is {value!r}; {rule}")


def _default(group: type, name: str) -> object:
    return next(item.default for item in fields(group) if item.name == name)


_OPTIONS_OF_STRATEGIES = (
    (("sync_bn", "bucket_mb", "static_graph", "grad_compression"), ("ddp",)),
    (("fsdp_dtype", "fsdp_offload"), ("fsdp", "hsdp", "zero1", "tp")),
    (("group_size",), ("hsdp", "tp", "pp")),
    (("pp_micro_batches",), ("pp",)),
)


class _Group:
    """Base of options that are checked on construction: each option alone, then their combinations."""

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            value, choices = getattr(self, item.name), item.metadata["choices"]
            if choices and value not in choices:
                hint = f"; {cannot_train(value)}" if item.name == "loader" and cannot_train(value) else ""
                raise _fail(item.name, value, f"expected one of {', '.join(choices)}{hint}")
            for words, bound in item.metadata["bounds"]:
                # This form of the comparison also refuses NaN.
                fits = {"at least": operator.ge, "above": operator.gt, "at most": operator.le}[words]
                if bound is not None and not fits(value, bound):
                    raise _fail(item.name, value, f"it must be {words} {bound}")
        self._check()

    def _check(self) -> None:
        """Refuse options that contradict each other."""


@dataclass(frozen=True, kw_only=True)
class DataOptions(_Group):
    """Options of the data: source, crops and augmentation.

    Raises
    ------
    UsageError
        A value is out of range, or two of them contradict each other.
    """

    data: str = option("", "training data: a .beton file, or a directory of class folders (stock loaders only)")
    val: str = option("", "validation data, of the same two kinds")
    val_fraction: float = option(
        0.0, "without --val: hold out this share of --data for validation, 0 to 0.5", low=0, high=0.5
    )
    loader: str = option("beton", "data loader", choices=TRAINING_LOADERS)
    batch_size: int = option(256, "images per process and micro-batch", short="-b", low=1)
    val_batch_size: int = option(0, "images per process while validating; 0 means --batch-size", low=0)
    num_workers: int = option(
        -1, "loader workers per process; -1 means the cores divided by the processes of this node", low=-1
    )
    prefetch: int = option(2, "batches prepared ahead (per worker for the torch loaders)", low=1)
    image_size: int = option(224, "side of the training and validation crop, pixels", low=1)
    val_size: int = option(0, "side of the validation crop, pixels; 0 means --image-size", low=0)
    start_size: int = option(
        0,
        "progressive resizing: side of the training crop up to epoch --grow-start; it reaches --image-size at epoch "
        "--grow-end, in multiples of 32; 0 means off (beton)",
        low=0,
    )
    grow_start: int = option(0, "last epoch with --start-size, counted from 0", low=0)
    grow_end: int = option(0, "first epoch with --image-size, counted from 0", low=0)
    flip_at_test: bool = option(False, "validate with the mean of the outputs for each image and its mirror image")
    resize_size: int = option(256, "shorter side before the validation crop, pixels", low=1)
    copies: str = option(
        "", "folder for the copy of --data that a loader with a format of its own needs; default: copies in --output"
    )
    recipe: str = option(
        "",
        "augmentation of the training images, by name (imagenet_train, deit, trivial) or from a YAML file; MixUp and "
        "CutMix in it mix for every loader",
    )
    tail: str = option(
        "auto",
        "how a training epoch ends that is no multiple of the batch: `even` uses every image once, in batches that "
        "differ by one image (beton); `pad` makes the last batch smaller; `drop` drops it; `auto` is even for "
        "beton, drop for the others and with --compile and pipelines, which need one shape",
        choices=TAILS,
    )

    def _check(self) -> None:
        if not self.data:
            raise UsageError("--data is missing; give a .beton file or a directory of class folders")
        for name, value in (("data", self.data), ("val", self.val)):
            if value and not Path(value).exists():
                raise _fail(name, value, "there is no such file or directory")
            if value and Path(value).is_dir() and self.loader not in ("torch", "torch-fast"):
                raise _fail(
                    name,
                    value,
                    f"--loader {self.loader} reads .beton files; convert it: "
                    f"beton convert imagefolder {value} OUT.beton",
                )
        if self.val and self.val_fraction:
            raise UsageError("--val and --val-fraction are both given; choose one source of validation images")
        if self.tail == "even" and self.loader != "beton":
            raise _fail(
                "tail", self.tail, f"--loader {self.loader} divides an epoch as DistributedSampler does: pad or drop"
            )
        if self.recipe:
            from dataloading.transforms import recipes  # not at the top: it needs NumPy

            recipes.find(self.recipe)  # errors must come before processes are started
            if self.loader == "ffcv":
                raise _fail("recipe", self.recipe, "FFCV lacks most transforms; take beton, torch or torch-fast")
        self._check_sizes()

    def _check_sizes(self) -> None:
        crop = self.val_size or self.image_size
        if self.resize_size < crop:
            name = "--val-size" if self.val_size else "--image-size"
            raise _fail("resize_size", self.resize_size, f"it must not be below {name} ({crop})")
        if self.start_size:
            if self.loader != "beton" or self.recipe:
                raise UsageError("--start-size works with --loader beton only, without --recipe")
            if self.start_size > self.image_size or self.grow_start >= self.grow_end:
                raise UsageError("--start-size grows to --image-size between the epochs --grow-start and --grow-end")

    def crop_size(self, epoch: int) -> int:
        """Return the side of the training crop in an epoch counted from 0."""
        if not self.start_size or epoch >= self.grow_end:
            return self.image_size
        done = max(0.0, (epoch - self.grow_start) / (self.grow_end - self.grow_start))
        if done == 0.0:
            return self.start_size
        return 32 * round((self.start_size + done * (self.image_size - self.start_size)) / 32)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(_Group):
    """Options of the network and of its distribution over processes.

    Raises
    ------
    UsageError
        A value is out of range, or two of them contradict each other.
    """

    model: str = option(
        "resnet18",
        "a torchvision classification model, `timm:NAME` for one of timm, `resnet9` (CIFAR), or `tiny`, `tiny-bn`, "
        "`tiny-vit` (tests)",
    )
    drop_path: float = option(
        0.0,
        "stochastic depth: probability of leaving out the deepest block; 0 means the network's own",
        low=0,
        high=0.9,
    )
    blurpool: bool = option(False, "blur before strided convolutions (Zhang, arXiv:1904.11486)")
    activation_checkpointing: bool = option(
        False, "keep no activations inside blocks; compute them again in the backward pass"
    )
    num_classes: int = option(0, "outputs of the network; 0 means the number of classes in the data", low=0)
    strategy: str = option(
        "ddp",
        "how processes share the work: replicas (ddp), sharded parameters (fsdp), shards within groups of processes "
        "(hsdp), parameters that are sharded between steps only (zero1), divided layers (tp), different layers (pp)",
        choices=STRATEGIES,
    )
    group_size: int = option(
        0, "processes that share one copy of the network (hsdp, tp, pp); 0 means those of a node", low=0
    )
    pp_micro_batches: int = option(
        0, "parts of a batch that follow each other through the pipeline; 0 means two for each stage (pp)", low=0
    )
    bucket_mb: int = option(25, "gradients averaged at a time, MiB (ddp)", low=1)
    static_graph: bool = option(False, "the same parameters get gradients in every step, which saves a search (ddp)")
    grad_compression: str = option("none", "average gradients in this precision (ddp)", choices=("none", "bf16"))
    fsdp_dtype: str = option(
        "none",
        "precision in which parameters are gathered and used; gradients are reduced in float32 (fsdp, hsdp, zero1, tp)",
        choices=("none", "bf16"),
    )
    fsdp_offload: bool = option(
        False, "keep parameters, gradients and optimiser in host memory (fsdp, hsdp, zero1, tp on GPUs)"
    )
    amp: str = option("none", "mixed precision of forward and backward", choices=PRECISIONS)
    channels_last: bool = option(True, "NHWC memory layout for weights and images")
    compile: bool = option(False, "compile the network with torch.compile")
    sync_bn: bool = option(False, "batch normalisation over all processes (DDP)")

    def _check(self) -> None:
        if self.strategy != "ddp" and self.amp == "fp16":
            raise UsageError(
                f"--strategy {self.strategy} with --amp fp16 has no exact gradient scaling; use --amp bf16"
            )
        for names, strategies in _OPTIONS_OF_STRATEGIES:
            for name in names:
                if self.strategy not in strategies and getattr(self, name) != _default(ModelOptions, name):
                    raise UsageError(
                        f"--{name.replace('_', '-')} works with --strategy {' or '.join(strategies)} only, "
                        f"this run has {self.strategy}"
                    )


@dataclass(frozen=True, kw_only=True)
class OptimOptions(_Group):
    """Options of the optimiser, the schedule and regularisation.

    Raises
    ------
    UsageError
        A value is out of range, or two of them contradict each other.
    """

    epochs: int = option(90, "passes over the training data", low=1)
    steps: int = option(
        0, "stop after this many optimiser steps, and spread the schedule over them; 0 means --epochs", low=0
    )
    optimizer: str = option("sgd", "the optimiser; lamb and muon need timm", choices=OPTIMIZERS)
    lr: float = option(0.1, "learning rate for a global batch of 256 images; scaled linearly to the real one", above=0)
    scale_lr: bool = option(True, "scale --lr by global batch / 256 (Goyal et al., arXiv:1706.02677)")
    schedule: str = option(
        "cosine",
        "how the learning rate falls after the warm-up: to 0 as a cosine or a line, or in steps",
        choices=SCHEDULES,
    )
    step_epochs: int = option(30, "--schedule step: epochs between two steps", low=1)
    step_factor: float = option(0.1, "--schedule step: factor of a step", above=0, high=1)
    momentum: float = option(0.9, "momentum of sgd and muon", low=0, high=0.9999)
    nesterov: bool = option(True, "Nesterov momentum (sgd, muon)")
    beta1: float = option(0.9, "decay of the mean of gradients (adamw, lamb)", low=0, high=0.9999)
    beta2: float = option(0.999, "decay of the mean of squared gradients (adamw, lamb)", low=0, high=0.99999)
    weight_decay: float = option(5e-5, "L2 penalty", low=0)
    norm_weight_decay: bool = option(False, "apply --weight-decay to norms and biases too")
    warmup_epochs: float = option(5.0, "epochs of linear warm-up; at most half of the run is used", low=0)
    label_smoothing: float = option(0.1, "share of a target that is spread over all classes", low=0, high=0.9999)
    accum: int = option(1, "micro-batches per optimiser step", low=1)
    clip_norm: float = option(0.0, "largest gradient norm; 0 means no clipping", low=0)
    mixup: float = option(0.0, "alpha of mixup; 0 means off", low=0)
    cutmix: float = option(0.0, "alpha of CutMix; 0 means off; with --mixup one of the two is drawn per batch", low=0)
    ema: float = option(
        0.0,
        "decay of an exponential moving average of the weights, used to validate; 0 means off",
        low=0,
        high=0.999999,
    )

    def _check(self) -> None:
        if self.optimizer in ("sgd", "muon") and self.nesterov and self.momentum == 0:
            raise UsageError("--nesterov needs --momentum above 0; pass --no-nesterov")


@dataclass(frozen=True, kw_only=True)
class RunOptions(_Group):
    """Options of output, logging and hardware.

    Raises
    ------
    UsageError
        A value is out of range, or two of them contradict each other.
    """

    output: str = option("", "directory for log.jsonl and checkpoints; without it nothing is written")
    overwrite_output: bool = option(False, "remove the checkpoints and the log that an earlier run left in --output")
    resume: str = option("no", "`no`, `auto` (newest checkpoint of --output, if any) or a checkpoint directory")
    checkpoints: bool = option(True, "write checkpoints to --output")
    checkpoint_steps: int = option(0, "optimiser steps between checkpoints; 0 means at the end of each epoch", low=0)
    async_checkpoints: bool = option(
        False, "write checkpoints in the background, from a copy in host memory, while the training goes on"
    )
    keep: int = option(2, "newest checkpoints kept", low=1)
    keep_best: bool = option(
        False, "also keep the checkpoint with the best top-1 on the validation data; the link `best` leads to it"
    )
    log_steps: int = option(10, "optimiser steps between log lines (each step has a record in log.jsonl)", low=1)
    profile: bool = option(
        False,
        "write a torch.profiler trace of ten steps to --output, with the loader's hops, and say what a step would take "
        "with free data and with free communication",
    )
    track: str = option("", "also send the figures to `tensorboard`, `wandb`, or both, separated by a comma")
    log_seen: bool = option(False, "log how often each label came, and the mean pixel of the training images")
    seed: int = option(0, "seed of weights, order and augmentation, 0 to 2**31-1", low=0, high=2**31 - 1)
    device: str = option("auto", "`auto`, `cpu` or `cuda`")
    accelerator: str = option(
        REAL,
        "`real`, or `sim:RATE`: each process simulates a device of RATE images/s by sleeping; `sim:NAME` takes the "
        "published rate of a device, e.g. sim:a100-resnet50 (train/devices.py has the names and sources)",
    )
    deterministic: bool = option(False, "only deterministic GPU kernels (slower)")
    peak_tflops: float = option(
        0.0,
        "peak of one device in TFLOP/s, for the model FLOP utilisation in the log; 0 takes it from the table of known "
        "devices (with --amp)",
        low=0,
    )

    def _check(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise _fail("device", self.device, "expected auto, cpu or cuda")
        sim_rate(self.accelerator)
        if self.resume == "auto" and not self.output:
            raise UsageError("--resume auto looks for checkpoints in --output, which is missing")
        if self.profile and not self.output:
            raise UsageError("--profile writes a trace to --output, which is missing")
        if tracker_names(self.track) and not self.output:
            raise UsageError(f"--track {self.track} writes to --output, which is missing")
        if self.overwrite_output and not self.output:
            raise UsageError("--overwrite-output needs --output, which is missing")
        if self.overwrite_output and self.resume == "auto":
            raise UsageError("--resume auto continues the run in --output, --overwrite-output removes it; choose one")
        if self.resume not in ("no", "auto") and not Path(self.resume).is_dir():
            raise _fail("resume", self.resume, "expected no, auto, or the directory of a checkpoint")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """All options of one training run, in four groups."""

    data: DataOptions
    model: ModelOptions
    optim: OptimOptions
    run: RunOptions

    def __post_init__(self) -> None:
        if self.model.static_graph and self.optim.accum > 1:
            raise UsageError(
                f"--static-graph with --accum {self.optim.accum}: DDP would need to average in each micro-batch; "
                f"choose one"
            )
        if self.model.strategy == "pp":
            self._check_pipeline()
        if self.run.log_seen and self.model.strategy in ("tp", "pp"):
            raise UsageError(f"--log-seen counts each process's images: --strategy {self.model.strategy} shares them")
        if self.run.keep_best and not (self.data.val or self.data.val_fraction):
            raise UsageError("--keep-best needs validation data: pass --val or --val-fraction")
        if self.optim.optimizer in ("lamb", "muon") and self.model.strategy != "ddp":
            raise UsageError(f"--optimizer {self.optim.optimizer} needs whole parameters: use --strategy ddp")

    def _check_pipeline(self) -> None:
        if self.tail != "drop":
            raise UsageError(f"--strategy pp needs batches of one size: --tail drop, not {self.tail}")
        if self.data.start_size:
            raise UsageError("--strategy pp needs images of one size: leave out --start-size")
        if self.model.compile:
            raise UsageError("--strategy pp does not compile its stages: leave out --compile")

    @property
    def tail(self) -> Literal["even", "pad", "drop"]:
        """How a training epoch ends: ``even``, ``pad`` or ``drop``."""
        if self.data.tail != "auto":
            return cast(Literal["even", "pad", "drop"], self.data.tail)
        even = self.data.loader == "beton" and not self.model.compile and self.model.strategy != "pp"
        return "even" if even else "drop"

    def flat(self) -> dict[str, Any]:
        """Return every option by name, with underscores."""
        return {name: value for group in asdict(self).values() for name, value in group.items()}


GROUPS: dict[str, type] = {"data": DataOptions, "model": ModelOptions, "optim": OptimOptions, "run": RunOptions}


def option_fields() -> list[Field[Any]]:
    """Return the fields of all groups, in the order of the help text; names are unique across groups."""
    return [item for group in GROUPS.values() for item in fields(group)]


def make_options(**values: Any) -> TrainOptions:
    """Build the groups from flat option values.

    Parameters
    ----------
    **values
        Options by name; those left out keep their defaults.

    Raises
    ------
    UsageError
        A name is unknown, or a value is not allowed.

    Examples
    --------
    >>> make_options(data=".", loader="torch", epochs=3).optim.epochs
    3
    """
    groups = {}
    for group_name, group in GROUPS.items():
        names = {item.name for item in fields(group)} & values.keys()
        groups[group_name] = group(**{name: values.pop(name) for name in names})
    if values:
        raise UsageError(f"unknown training options: {', '.join(sorted(values))}")
    return TrainOptions(**groups)
