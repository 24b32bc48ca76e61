"""What `phalanx data check` asks about the samples of a recognition data set."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from phalanx.data.samples import Draw, FromSource, Image, SampleError
from phalanx.families.recognition.characters import Characters, UnusableTextError
from phalanx.families.recognition.draw import with_words

UNKNOWN, TOO_LONG, BLANK = '(not in the dictionary)', '(too long for the width)', '␣'


@dataclass(frozen=True)
class TextSurvey(FromSource):
    """The samples of one split as they lie in their files, counted by characters."""

    characters: Characters
    targets: Callable[[str], object]  # of a text; raises UnusableTextError when it has none
    places: int | None = None  # that the network gives along a line, for CTC
    width: int = 0  # of a line, in pixels
    class_names: tuple[str, ...] = ()  # whatever is found: few data sets have all of a large dictionary
    unit: str = 'characters'

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """The image and its characters, a blank as ␣. Raises SampleError, also for a text that cannot be learned."""
        image, text = self.source.read(Draw(index))
        try:
            self.targets(text)
        except UnusableTextError as error:
            raise SampleError(f'{self.name(index)}: {error}') from None
        counts = Counter(BLANK if character == ' ' else character for character in self.characters.known(text))
        counts += Counter(f'{UNKNOWN} {character}' for character in self.characters.unknown(text))
        is_too_long = self.places is not None and ctc_steps_needed(self.characters.known(text)) > self.places
        return image, dict(counts) | ({TOO_LONG: 1} if is_too_long else {})

    @property
    def cures(self) -> dict[str, str]:
        return {
            UNKNOWN: 'they are neither learned nor read; add them to the dictionary, or leave them out of the texts',
            TOO_LONG: f'their texts need more than the {self.places} places that a width of {self.width} gives CTC, '
            'so nothing is learned from them; make `image_size` wider',
        }

    def picture(self, index: int) -> Image:
        """The image with its text below."""
        return with_words(*self.source.read(Draw(index)))


def ctc_steps_needed(text: str) -> int:
    """Along a line, for CTC to write `text`: one for each character, and a blank between two that are equal."""
    return len(text) + sum(one == next_one for one, next_one in pairwise(text))
