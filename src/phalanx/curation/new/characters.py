"""Dictionary of a recogniser that keeps what its published weights read."""

from pathlib import Path

from phalanx.curation.prepare.targets import Written
from phalanx.runtime import ArtifactError, load
from phalanx.system.errors import RequestError


def keep_characters(written: Written, weights: Path) -> None:
    """Put the characters of published weights before those of the texts in the dictionary of a data set.

    Raises RequestError for weights that do not name their characters.
    """
    try:
        known = load(weights).guide['reading']['characters']
    except (ArtifactError, KeyError) as error:
        raise RequestError(f'--keep_characters: the characters of {weights} are not known: {error}') from None
    # Rows of the head are matched by character, so new ones may stand anywhere. The space is a key of the recipe.
    added = sorted(set(written.units) - set(known))
    characters = [one for one in (*known, *added) if one != ' ']
    (written.out / 'characters.txt').write_text(''.join(f'{one}\n' for one in characters), encoding='utf-8')
    written.units.setdefault(' ', 0)
