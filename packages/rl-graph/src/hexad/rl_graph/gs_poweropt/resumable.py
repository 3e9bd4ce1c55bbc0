"""A run of the command: saved as it goes, gone on from, its errors in the command's words."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hexad.core.errors import HexadError, InputError
from hexad.rl_graph.gs_poweropt import state_file
from hexad.rl_graph.gs_poweropt.ask_tell import GSPower
from hexad.rl_graph.gs_poweropt.command_input import as_flags
from hexad.rl_graph.gs_poweropt.loop import Batch, Budget, advance, describe, finish, take_unfinished


@dataclass
class Folder:
    """What a run keeps on disk.

    Args:
        out: the folder.
        settings: what a run that goes on must not change, as JSON values.
        save_every: seconds between saved states.
        history: a row of `state_file.COLUMNS` a step.
        best: the best point of all runs in the folder.
    """

    out: Path
    settings: dict[str, Any]
    save_every: float
    history: list[tuple[float, ...]] = field(default_factory=list)
    best: state_file.Best = field(default_factory=state_file.Best)
    saved: float = field(default_factory=time.monotonic)

    def go_on(self, search: GSPower) -> None:
        """Set the search to what the folder holds, if it holds one.

        Raises:
            InputError: it is damaged, or of other settings.
        """
        path = self.out / "state.npz"
        if path.exists():
            self.history, self.best = state_file.load(path, search, self.settings)

    def save(self, state: dict[str, Any]) -> None:
        """Write the state of a search between two steps."""
        state_file.save(self.out / "state.npz", state, self.history, self.settings, self.best)
        self.saved = time.monotonic()

    def note(self, search: GSPower) -> None:
        """Note the last step, once."""
        if len(self.history) < search.nit:
            length = search.settings.step_length(search.nit - 1)
            self.history.append((search.nit, search.nfev, search.fun, search.ess, length))
        self.best.take(search)

    def after_step(self, search: GSPower) -> None:
        """Note a step, and save it if the last time was long ago."""
        self.note(search)
        if time.monotonic() - self.saved >= self.save_every:
            self.save(search.state_dict())


def check_same(objective: str, evaluate: Batch, folder: Folder) -> None:
    """Evaluate the best point again.

    Raises:
        InputError: its value is another one.
    """
    best = folder.best
    if not best.x.size:
        return
    try:
        value = float(evaluate(best.x[None].copy())[0])
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{objective} failed at the best point of {folder.out} ({cause}); what was done before is kept"
        ) from error
    # Batches of other sizes are rounded otherwise, most of all on a GPU.
    if not math.isclose(value, best.fun, rel_tol=1e-5, abs_tol=1e-12):
        raise InputError(
            f"{objective} is {value:.8g} at the best point of {folder.out}, and was {best.fun:.8g}: it has "
            "changed; name another folder, pass --fresh to begin anew, or --noisy if it is random"
        )


def run(
    search: GSPower,
    evaluate: Batch,
    budget: Budget,
    folder: Folder,
    objective: str,
    tell: Callable[[float, str], None],
) -> dict[str, Any]:
    """Make the steps that are left and the last evaluations; gives the result.

    Args:
        search: where it stands.
        evaluate: from points (K, d) to values (K,).
        budget: of the run.
        folder: where it is kept. The state there is always one between two steps.
        objective: how the function is called, for errors.
        tell: takes the share that is done and a few words.

    Raises:
        InputError: the function failed; what was done before is kept.
    """
    ending: dict[str, Any] = {"fun_mean": math.nan, "nfev_polish": 0, "polished": None}
    held, between = search.nit, None

    def after_step() -> bool:
        folder.after_step(search)
        share = search.nit / budget.maxiter, search.nfev / budget.steps
        tell(max(share), f"best {folder.best.fun:.6g}")
        return False

    try:
        status = advance(search, evaluate, budget, after_step)
        between = search.state_dict()
        folder.save(between)
        tell(1.0, "last evaluations")
        ending = finish(search, evaluate, budget)
    except KeyboardInterrupt as stop:
        status = 130
        folder.note(search)
        between = between or search.state_dict()
        take_unfinished(search, stop)
    except (Exception, SystemExit) as error:
        where = f"after step {search.nit}" if between else f"in step {search.nit + 1}"
        folder.best.take(search)
        folder.save(between or search.state_dict())
        kept = f"what was done before is kept in {folder.out}"
        if isinstance(error, HexadError):
            raise InputError(f"{as_flags(str(error))} ({where}; {kept})") from error
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"{objective} failed {where} ({cause}); {kept}, and HEXAD_DEBUG=1 shows where"
        ) from error
    folder.best.take(search)
    folder.save(between)
    result = search.result | ending | describe(search, status, ending)
    if status in (0, 1, 2) and held and search.nit == held:
        result["message"] = (
            f"{folder.out} held {held} steps already, and no step was made; {result['message']}"
        )
    if folder.best.x.size:
        result |= {"x": folder.best.x, "fun": folder.best.fun}
    return result
