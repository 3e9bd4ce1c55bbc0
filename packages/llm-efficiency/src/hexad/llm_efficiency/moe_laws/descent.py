"""Minimise the objective of a fit: L-BFGS from afar, then Gauss-Newton steps along the valley."""

import numpy as np
from scipy.optimize import least_squares, minimize

from hexad.llm_efficiency.moe_laws.objective import MAX, START, Objective, Vector

DESCENT_ITERATIONS = 300
POLISH_EVALUATIONS = 200
LAST_POLISH_EVALUATIONS = 500

# E_start from 1 to 100, E_max from 1.1 to 10,001 times that: beyond lie mirror images of the solution.
BOUNDS = np.full((2, 11), np.array([[-np.inf], [np.inf]]))
BOUNDS[:, START] = np.log([1, 100])
BOUNDS[:, MAX] = np.log([0.1, 1e4])


def descend(objective: Objective, theta: Vector, free: np.ndarray) -> tuple[float, Vector]:
    """L-BFGS-B over the free entries, in centred coordinates, at SciPy's tolerances; value and vector."""
    transform = objective.centring(free)

    def function(z: np.ndarray) -> tuple[float, np.ndarray]:
        whole = theta.copy()
        whole[free] = transform @ z
        value, gradient = objective(whole)
        return value, transform.T @ gradient[free]

    low, high = (bound[free] for bound in BOUNDS)
    found = minimize(
        function,
        np.clip(np.linalg.solve(transform, theta[free]), low, high),
        jac=True,
        method="L-BFGS-B",
        bounds=np.stack([low, high], axis=1),
        options={"maxiter": DESCENT_ITERATIONS, "maxcor": 30},
    )
    result = theta.copy()
    result[free] = transform @ found.x
    return float(found.fun), result


def settle(
    objective: Objective, theta: Vector, free: np.ndarray, evaluations: int = POLISH_EVALUATIONS
) -> tuple[float, Vector]:
    """Gauss-Newton steps in a trust region: the valley is too flat for L-BFGS to follow to its end."""
    transform = objective.centring(free)
    low, high = (bound[free] for bound in BOUNDS)

    def whole(z: np.ndarray) -> Vector:
        result = theta.copy()
        result[free] = transform @ z
        return result

    def derivatives(z: np.ndarray) -> np.ndarray:
        jacobian = objective.log_loss(whole(z), derivatives=True)[1]
        assert jacobian is not None
        return jacobian[:, free] @ transform

    margin = 1e-6  # the method wants to begin within the bounds
    start = np.clip(np.linalg.solve(transform, theta[free]), low + margin, high - margin)
    try:
        found = least_squares(
            lambda z: objective.residuals(whole(z)),
            start,
            derivatives,
            bounds=(low, high),
            loss=objective.rho,
            f_scale=objective.delta,
            x_scale="jac",
            ftol=1e-10,
            xtol=1e-10,
            gtol=1e-12,
            max_nfev=evaluations,
        )
    except (ValueError, np.linalg.LinAlgError):  # it stepped where terms overflow
        return objective(theta)[0], theta
    result = whole(found.x)
    return objective(result)[0], result
