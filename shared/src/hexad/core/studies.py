"""What a study is: a question, arms that are measured, and claims that are stated before the measuring.

    STUDY = Study(
        name="spargeattn",
        question="Does skipping tiles by the two-stage filter keep the result and save time?",
        arms=(Arm("sparge", "SpargeAttn", "method", run_sparge), Arm("dense", "SDPA", "baseline", run_dense)),
        metrics=(Metric("psnr", "PSNR", "dB", better="higher"), ...),
        claims=(Claim("psnr-kept", "PSNR within 0.35 dB of dense", metric="psnr", arm="sparge",
                      baseline="dense", direction="at least", threshold=-0.35), ...),
        presets={"tiny": Preset(Config(n=1024), seeds=1), "quick": ..., "full": Preset(..., seeds=3)},
    )

An arm is a function of a `Trial` that yields `Measurement`s; an arm at one seed is a *trial*, the unit that
is run, stored and resumed (`hexad.core.runner`, `hexad.core.store`). Verdicts are in `hexad.core.verdicts`.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hexad.core.errors import InputError
from hexad.core.validation import check_choice

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure as MatplotlibFigure

Role = Literal["method", "ablation", "baseline"]


def _no_progress(fraction: float, note: str = "") -> None:
    """Show nothing: the trial runs where nobody watches."""


@dataclass(frozen=True)
class Trial:
    """One arm at one seed, as its function sees it.

    Attributes:
        arm: name of the arm.
        seed: the only source of randomness; the same seed gives all arms the same data.
        config: the preset's configuration.
        folder: a folder of this trial's own that outlives an interrupted run: checkpoints go here, and what
            the figures need beside the records.
        progress: call it as `trial.progress(fraction, "note")` in trials of more than two seconds.
    """

    arm: str
    seed: int
    config: Any
    folder: Path
    progress: Callable[..., None] = _no_progress


@dataclass(frozen=True)
class Measurement:
    """A number that a trial measured.

    Attributes:
        metric: name of one of the study's metrics.
        value: a finite number.
        case: what was measured within the trial (`"mosaic/3"`, `"china/16384"`), where there are several.
    """

    metric: str
    value: float
    case: str = ""


@dataclass(frozen=True)
class Arm:
    """The method, one of its ablations, or a baseline; `run(trial)` yields its measurements."""

    name: str
    title: str
    role: Role
    run: Callable[[Trial], Iterable[Measurement]]


@dataclass(frozen=True)
class Metric:
    """A measured quantity; `better` says which way is better, if either is."""

    name: str
    title: str
    unit: str = ""
    better: Literal["higher", "lower"] | None = None
    digits: int = 3


@dataclass(frozen=True)
class Claim:
    """A statement with a threshold, written before it is measured.

    The claim is about `arm`'s metric, or with a `baseline` about the paired difference (arm - baseline) or
    ratio (arm / baseline). `cases`, a shell pattern such as `"mosaic/*"`, restricts it to some cases, over
    which the mean is taken. The interval comes from resampling seeds, or cases where cases are the
    sample (images, problems) and not a fixed list of settings.
    """

    name: str
    statement: str
    metric: str
    arm: str
    direction: Literal["at least", "at most"]
    threshold: float
    baseline: str | None = None
    relation: Literal["difference", "ratio"] = "difference"
    cases: str = "*"
    resample: Literal["seed", "case"] = "seed"
    presets: tuple[str, ...] = ()
    """The presets large enough to judge it; empty means all."""


@dataclass(frozen=True)
class Preset:
    """A size of the study: its configuration (a frozen dataclass) and how many seeds (0, 1, ...)."""

    config: Any
    seeds: int


@dataclass(frozen=True)
class Figure:
    """A picture in the report: `draw` takes the records and returns a Matplotlib figure, or None.

    None means that this preset measured nothing to draw.
    """

    name: str
    title: str
    draw: "Callable[[Results], MatplotlibFigure | None]"


@dataclass(frozen=True)
class Results:
    """What was measured, as figures see it.

    Attributes:
        records: long-form table with the columns arm, seed, case, metric, value, unit.
        config: the preset's configuration.
        folders: the trial folder of each finished (arm, seed).
    """

    records: "pl.DataFrame"
    config: Any
    folders: Mapping[tuple[str, int], Path]


def _check_file_names(names: Iterable[str], where: str) -> None:
    """Records and figures lie in files named after arms and figures, `--` before the seed."""
    for name in names:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_.]*(-[a-z0-9_.]+)*", name):
            raise InputError(
                f"{name!r} ({where}) names files; write small letters, digits, '_', '.' and single '-'"
            )


@dataclass(frozen=True)
class Study:
    """A question with everything needed to answer it again.

    Raises:
        InputError: names clash, or a claim speaks of an arm, metric or preset that is not there.
    """

    name: str
    question: str
    arms: tuple[Arm, ...]
    metrics: tuple[Metric, ...]
    claims: tuple[Claim, ...]
    presets: Mapping[str, Preset]
    figures: tuple[Figure, ...] = ()
    notes: str = ""
    """What a reader must know to read the numbers: the data, its licence, how it departs from the paper."""
    version: int = 1
    """Raise it when old records no longer mean the same; they are then not mixed with new ones."""

    def __post_init__(self) -> None:
        for what in ("arms", "metrics", "claims", "figures"):
            names = [item.name for item in getattr(self, what)]
            if what in ("arms", "figures"):
                _check_file_names(names, f"{what} of study {self.name!r}")
            if len(set(names)) < len(names):
                raise InputError(f"study {self.name!r} has two {what} of one name: {sorted(names)}")
        _check_file_names([self.name, *self.presets], f"study {self.name!r} and its presets")
        arms = [arm.name for arm in self.arms]
        metrics = [metric.name for metric in self.metrics]
        for claim in self.claims:
            where = f"in claim {claim.name!r} of study {self.name!r}"
            check_choice("metric", claim.metric, metrics, where)
            check_choice("arm", claim.arm, arms, where)
            if claim.baseline is not None:
                check_choice("baseline", claim.baseline, arms, where)
            for preset in claim.presets:
                check_choice("preset", preset, self.presets, where)
            if not math.isfinite(claim.threshold):
                raise InputError(f"threshold {where} is {claim.threshold}; it must be finite")
        for name, preset in self.presets.items():
            if preset.seeds < 1:
                raise InputError(f"preset {name!r} of study {self.name!r} has no seeds")

    def arm(self, name: str) -> Arm:
        """The arm of that name, or an `InputError` with the nearest name."""
        check_choice("arm", name, [arm.name for arm in self.arms], f"of study {self.name!r}")
        return next(arm for arm in self.arms if arm.name == name)

    def metric(self, name: str) -> Metric:
        """The metric of that name, or an `InputError` with the nearest name."""
        check_choice("metric", name, [metric.name for metric in self.metrics], f"of study {self.name!r}")
        return next(metric for metric in self.metrics if metric.name == name)

    def preset(self, name: str) -> Preset:
        """The preset of that name, or an `InputError` with the nearest name."""
        check_choice("preset", name, self.presets, f"of study {self.name!r}")
        return self.presets[name]


@dataclass(frozen=True)
class Task:
    """A trial to be run, on its own: it pickles, so that another process or machine can take it."""

    study: Study
    arm: str
    seed: int
    config: Any
    folder: Path

    @property
    def label(self) -> str:
        """Arm and seed, for people."""
        return f"{self.arm} (seed {self.seed})"


@dataclass(frozen=True)
class Outcome:
    """What became of a task: its measurements, or the error that ended it."""

    measurements: tuple[Measurement, ...] = ()
    seconds: float = 0.0
    error: str = ""
    traceback: str = ""
    environment: dict[str, Any] = field(default_factory=dict)


def describe_config(config: Any) -> dict[str, Any]:
    """The fields of a configuration as JSON values, to be stored and compared."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise InputError(f"a preset's config must be a dataclass, not {config!r}")

    def plain(value: Any) -> Any:
        if isinstance(value, (bool, int, float, str)) or value is None:
            return value
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if isinstance(value, (set, frozenset)):
            return sorted(map(plain, value), key=str)
        return str(value)

    return {key: plain(value) for key, value in dataclasses.asdict(config).items()}
