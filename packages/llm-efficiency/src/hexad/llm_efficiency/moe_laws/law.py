"""Scaling laws of language models: the joint law of dense and MoE models, Chinchilla's, and Clark's.

Source: "Joint MoE Scaling Laws: Mixture of Experts Can Be Memory Efficient" (arXiv 2502.05172), equations of
section 4 and appendix. N are active parameters with embedding and unembedding, D training tokens, E experts
of which one is active, L the loss in nats per token; logarithms are natural. Exponents keep the sign with
which they stand in the formula: they are negative.
"""

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_range
from hexad.llm_efficiency.moe_laws.law_file import check_coefficients, law_parts
from hexad.llm_efficiency.moe_laws.ranges import PAPER_RANGES, Ranges

FLOPS_PER_PARAMETER = 6.0  # a training token costs 6 N FLOPs (section 3)

Values = Float[np.ndarray, "..."]


@runtime_checkable
class Law(Protocol):
    """What plans need of a law."""

    @property
    def ranges(self) -> Ranges | None:
        """Where it was fitted, if that is known."""
        ...

    def loss(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike = 1) -> Values:
        """Nats per token, broadcast over the arguments."""
        ...


def _checked(n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike) -> tuple[Values, Values, Values]:
    """The arguments of a law as arrays of floats.

    Raises:
        InputError: N or D is not positive, E is below 1, one of them is not finite, or they do not broadcast.
    """
    arrays = []
    for name, given, low in (("n_active", n_active, 0.0), ("tokens", tokens, 0.0), ("experts", experts, 1.0)):
        try:
            values = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{name} must be numbers, not {given!r}") from None
        bad = ~np.isfinite(values) | ((values < low) if low else (values <= low))
        if bad.any():
            wanted = "at least 1" if low else "positive"
            raise InputError(f"{name} is {values[bad].flat[0]:g}; it must be finite and {wanted}")
        arrays.append(values)
    try:
        np.broadcast_shapes(*(values.shape for values in arrays))
    except ValueError:
        shapes = ", ".join(str(values.shape) for values in arrays)
        raise InputError(
            f"n_active, tokens and experts have the shapes {shapes}; they must broadcast"
        ) from None
    return arrays[0], arrays[1], arrays[2]


@dataclass(frozen=True)
class Optimum:
    """The compute-optimal model at a budget: N* active parameters, D* tokens and their loss."""

    n_active: float
    tokens: float
    loss: float


def _check_ranges(ranges: object) -> None:
    if not isinstance(ranges, Ranges | None):
        raise InputError(f"ranges is {ranges!r}; it must be a Ranges, or None where none are known")


@dataclass(frozen=True)
class _Coefficients:
    """What laws have in common: named coefficients that are written as JSON."""

    kind: ClassVar[str]

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the law's coefficients."""
        return tuple(item.name for item in fields(cls) if item.name != "ranges")

    def to_json(self) -> str:
        """The law as JSON; `law_from_json` reads it."""
        params = asdict(self)
        ranges = params.pop("ranges")
        # JSON has no infinity; an absent e_max means that experts do not saturate.
        finite = {name: value for name, value in params.items() if math.isfinite(value)}
        return json.dumps({"law": self.kind, "params": finite, "ranges": ranges}, indent=2)


@dataclass(frozen=True)
class ChinchillaLaw(_Coefficients):
    """L = m N^mu + n D^nu + c, for models of one number of experts (Hoffmann et al. 2022; Table 4).

    Raises:
        InputError: a coefficient that is not finite, m, n or c negative.
    """

    kind: ClassVar[str] = "chinchilla"
    m: float
    mu: float
    n: float
    nu: float
    c: float
    ranges: Ranges | None = None

    def __post_init__(self) -> None:
        _check_ranges(self.ranges)
        for name in ("m", "n", "c"):
            check_range(name, getattr(self, name), 0)
        for name in ("mu", "nu"):
            check_range(name, getattr(self, name))

    def loss(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike = 1) -> Values:
        """Nats per token; the number of experts changes nothing."""
        n_active, tokens, _ = _checked(n_active, tokens, experts)
        return self.m * n_active**self.mu + self.n * tokens**self.nu + self.c

    def optimum(self, flops: float) -> Optimum:
        """The model of least loss with 6 N D = `flops`, in closed form (appendix, "compute optimality").

        N* = G (F/6)^(q/(p+q)), D* = (F/6)^(p/(p+q)) / G, G = (p m / (q n))^(1/(p+q)), p = |mu|, q = |nu|. The
        paper prints the exponent of G as 1/(mu + nu), which for its negative exponents is G's inverse; with
        the absolute values its Table 1 comes out.

        Raises:
            InputError: `flops` is not positive, or the law falls with N or D without end or not at all.
        """
        check_range("flops", flops, 0, low_open=True)
        if self.mu >= 0 or self.nu >= 0 or self.m == 0 or self.n == 0:
            raise InputError(f"no optimum: the loss of {self} does not fall both with N and with D")
        p, q = -self.mu, -self.nu
        g = (p * self.m / (q * self.n)) ** (1 / (p + q))
        product = flops / FLOPS_PER_PARAMETER
        n_active, tokens = g * product ** (q / (p + q)), product ** (p / (p + q)) / g
        return Optimum(n_active, tokens, float(self.loss(n_active, tokens)))


def _expert_hat(experts: ArrayLike, start: float, most: float) -> Values:
    """Eh, with 1/Eh = 1/(E - 1 + (1/E_start - 1/E_max)^-1) + 1/E_max (Clark et al. 2022, equation 9)."""
    _, _, experts = _checked(1.0, 1.0, experts)
    return 1 / (1 / (experts - 1 + 1 / (1 / start - 1 / most)) + 1 / most)


def _check_bounds(e_start: float, e_max: float) -> None:
    check_range("e_start", e_start, 0, low_open=True)
    if e_max != math.inf:
        check_range("e_max", e_max)
    if not e_max > e_start:
        raise InputError(f"e_max is {e_max!r}; it must be larger than e_start, {e_start!r}")


@dataclass(frozen=True)
class JointMoELaw(_Coefficients):
    """L = a Eh^delta N^(alpha + gamma ln Eh) + b Eh^omega D^(beta + zeta ln Eh) + c (equation of section 4).

    Without arguments it is the paper's own fit (its table of coefficients), in nats per GPT-2 token of
    FineWeb-Edu. `ranges` are where it was fitted.

    Raises:
        InputError: a coefficient that is not finite, a, b or c negative, or e_max not above e_start.
    """

    kind: ClassVar[str] = "joint"
    a: float = 35.91
    alpha: float = -0.1889
    delta: float = -0.2285
    gamma: float = 0.0098
    b: float = 35.98
    beta: float = -0.1775
    omega: float = 0.5529
    zeta: float = -0.0259
    c: float = 1.3637
    e_start: float = 2.0732
    e_max: float = 290.4521
    ranges: Ranges | None = field(default=PAPER_RANGES)

    def __post_init__(self) -> None:
        _check_ranges(self.ranges)
        for name in ("a", "b", "c"):
            check_range(name, getattr(self, name), 0)
        for name in ("alpha", "delta", "gamma", "beta", "omega", "zeta"):
            check_range(name, getattr(self, name))
        _check_bounds(self.e_start, self.e_max)

    def expert_hat(self, experts: ArrayLike) -> Values:
        """Eh, which is E_start for E = 1 and tends to E_max; with 1 and infinity it is E itself."""
        return _expert_hat(experts, self.e_start, self.e_max)

    def loss(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike = 1) -> Values:
        """Nats per token, broadcast over the arguments.

        Raises:
            InputError: N or D is not positive, E is below 1, or one of them is not finite.
        """
        n_active, tokens, experts = _checked(n_active, tokens, experts)
        hat = self.expert_hat(experts)
        size = self.a * hat**self.delta * n_active ** (self.alpha + self.gamma * np.log(hat))
        data = self.b * hat**self.omega * tokens ** (self.beta + self.zeta * np.log(hat))
        return size + data + self.c

    def chinchilla(self, experts: float) -> ChinchillaLaw:
        """The law of models with that many experts, a Chinchilla law (Table 4).

        Raises:
            InputError: E is no number of at least 1.
        """
        experts = float(check_range("experts", experts, 1))
        hat = float(self.expert_hat(experts))
        return ChinchillaLaw(
            m=self.a * hat**self.delta,
            mu=self.alpha + self.gamma * math.log(hat),
            n=self.b * hat**self.omega,
            nu=self.beta + self.zeta * math.log(hat),
            c=self.c,
            ranges=None if self.ranges is None else replace(self.ranges, experts=(experts, experts)),
        )

    @classmethod
    def from_json(cls, text: str) -> "JointMoELaw":
        """The joint law that `to_json` wrote; `InputError` where it is another law or none."""
        law = law_from_json(text)
        if not isinstance(law, cls):
            raise InputError(f"the file holds a {law.kind} law, not a joint one; law_from_json reads both")
        return law


@dataclass(frozen=True)
class ClarkLaw(_Coefficients):
    """L = a Eh^delta N^(alpha + gamma ln Eh): Clark et al. 2022, at one number of tokens.

    It is the joint law's first term. The number of tokens changes nothing, so plans over tokens have no
    optimum under it.

    Raises:
        InputError: as for `JointMoELaw`.
    """

    kind: ClassVar[str] = "clark"
    a: float
    alpha: float
    delta: float
    gamma: float
    e_start: float
    e_max: float
    ranges: Ranges | None = None

    def __post_init__(self) -> None:
        _check_ranges(self.ranges)
        check_range("a", self.a, 0, low_open=True)
        for name in ("alpha", "delta", "gamma"):
            check_range(name, getattr(self, name))
        _check_bounds(self.e_start, self.e_max)

    def expert_hat(self, experts: ArrayLike) -> Values:
        """Eh, which is E_start for E = 1 and tends to E_max; with 1 and infinity it is E itself."""
        return _expert_hat(experts, self.e_start, self.e_max)

    def loss(self, n_active: ArrayLike, tokens: ArrayLike, experts: ArrayLike = 1) -> Values:
        """Nats per token; the tokens change nothing but the shape."""
        n_active, tokens, experts = _checked(n_active, tokens, experts)
        hat = self.expert_hat(experts)
        return self.a * hat**self.delta * n_active ** (self.alpha + self.gamma * np.log(hat)) + 0 * tokens


AnyLaw = JointMoELaw | ChinchillaLaw | ClarkLaw
LawKind = Literal["joint", "chinchilla", "clark"]
LAWS: dict[str, type[JointMoELaw] | type[ChinchillaLaw] | type[ClarkLaw]] = {
    law.kind: law for law in (JointMoELaw, ChinchillaLaw, ClarkLaw)
}


def law_from_json(text: str) -> AnyLaw:
    """The law that `to_json` or the command `fit` wrote.

    Raises:
        InputError: no JSON, an unknown law, coefficients that are missing, unknown or no numbers.
    """
    kind, params, ranges = law_parts(text)
    cls = LAWS[check_choice("law", kind, LAWS)]
    if "e_max" in cls.names():
        params = {"e_max": math.inf} | params
    check_coefficients(kind, params, cls.names())
    return cls(**params, ranges=ranges)
