"""What the outputs of each image are called."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath


def output_name(stem: str, name: str, level: int, suffix: str) -> str:
    """The path below the output folder of an output of type `name`; `stem` may hold folders."""
    return f"{name}/intensity_level_{level}/{stem}_{name}_{level}{suffix}"


def output_stems(sources: Iterable[str], recorded: Mapping[str, str], suffix: str) -> dict[str, str]:
    """The stem of each source's outputs; no two share one, nor would where case is ignored.

    It is the source's path without its suffix, such as `cat/a`. Where `cat/a.jpg` and `cat/a.png` lie side by
    side they are `cat/a_jpg` and `cat/a_png`, and where that is taken too, a hash is added. Whatever has an
    output already keeps its stem, so that an image that is added renames nothing.

    Args:
        sources: paths below the input folder, in order.
        recorded: an output of each source that has one.
        suffix: that of outputs.
    """
    sources = list(sources)
    stems: dict[str, str] = {}
    taken: set[str] = set()
    for source in sources:
        if source in recorded:
            stem = _stem_of(recorded[source], suffix)
            if stem is not None and stem in _candidates(source) and stem.lower() not in taken:
                stems[source] = stem
                taken.add(stem.lower())
    alike = Counter(_candidates(source)[0].lower() for source in sources)
    # Those that are alone come first: theirs is the plain stem, which an addition to another's might equal.
    for source in sorted(sources, key=lambda source: alike[_candidates(source)[0].lower()] > 1):
        if source in stems:
            continue
        plain, *others = _candidates(source)
        fitting = [plain, *others] if alike[plain.lower()] == 1 else others
        stems[source] = next(stem for stem in fitting if stem.lower() not in taken)
        taken.add(stems[source].lower())
    return stems


def _candidates(source: str) -> tuple[str, str, str]:
    path = PurePosixPath(source)
    plain = path.with_suffix("").as_posix()
    longer = f"{plain}_{path.suffix[1:]}"
    return plain, longer, f"{longer}_{hashlib.sha256(source.encode()).hexdigest()[:8]}"


def _stem_of(output: str, suffix: str) -> str | None:
    match = re.fullmatch(r"(\w+)/intensity_level_(\d+)/(.+)_\1_\2" + re.escape(suffix), output)
    return match[3] if match else None
