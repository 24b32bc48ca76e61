"""Statistics of recognition samples for `phalanx data check`."""

import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from phalanx.data.samples import Draw, FromSource, Image, SampleError
from phalanx.data.texts import FROM_RIGHT_CURE, reads_from_right
from phalanx.families.recognition.characters import Characters, UnusableTextError, compose
from phalanx.families.recognition.draw import add_caption
from phalanx.runtime.reading import is_upright

UNKNOWN, TOO_LONG, BLANK = '(not in the dictionary)', '(too long for the width)', '␣'
COMPOSED = '(changed to the normal form NFC)'
FROM_RIGHT, UPRIGHT = '(from the right)', '(taller than wide)'
FEW = 3  # characters that do not stand side by side in an image that is taller than wide
MOST_NAMED = 20  # entries of the dictionary in a note


@dataclass(frozen=True)
class LineSurvey(FromSource):
    """Samples of one split as stored, counted by character."""

    characters: Characters
    targets: Callable[[str], object]  # encodes a text; raises UnusableTextError if it cannot be learned
    time_steps: int | None = None  # outputs of the CTC head along a line; None without that head
    width: int = 0  # of the input of the network, in pixels
    # Empty, so that only occurring characters are listed: few data sets use all of a large dictionary.
    class_names: tuple[str, ...] = ()
    unit: str = 'characters'

    def count(self, index: int) -> tuple[Image, dict[str, int]]:
        """Return the image and the counts of its characters, a space as ␣.

        Raises SampleError for an unreadable sample and for a text that cannot be learned.
        """
        image, text = self.source.read(Draw(index))
        try:
            self.targets(text)
        except UnusableTextError as error:
            raise SampleError(f'{self.name(index)}: {error}') from None
        # Known characters count as classes, unknown ones by themselves.
        counts = Counter(BLANK if character == ' ' else character for character in self.characters.drop_unknown(text))
        counts += Counter(f'{UNKNOWN} {show(character)}' for character in self.characters.find_unknown(text))
        if compose(text) != text:
            left = Counter(text) - Counter(compose(text))
            counts += Counter({f'{COMPOSED} U+{ord(character):04X}': count for character, count in left.items()})
        # CTC gives a text that needs more time steps than there are no loss, so it would be ignored silently.
        known = self.characters.drop_unknown(text)
        is_too_long = self.time_steps is not None and ctc_steps_needed(known) > self.time_steps
        found = {
            TOO_LONG: is_too_long,
            FROM_RIGHT: reads_from_right(text) and not self.characters.right_to_left,
            UPRIGHT: len(text) >= FEW and is_upright(image.shape[1], image.shape[0]),
        }
        return image, dict(counts) | {name: 1 for name, is_so in found.items() if is_so}

    @property
    def cures(self) -> dict[str, str]:
        return {
            UNKNOWN: 'they are neither learned nor read; add them to the dictionary, or remove them from the texts',
            COMPOSED: 'texts are learned and compared with composed letters; predictions have them, too',
            FROM_RIGHT: FROM_RIGHT_CURE,
            UPRIGHT: 'they become a few columns of pixels, in which nothing can be read; turn the images so that lines lie',
            TOO_LONG: f'their texts need more than the {self.time_steps} time steps that CTC has at a width of {self.width}, '
            'so nothing is learned from them; increase the width in `image_size`',
        }

    @property
    def notes(self) -> list[str]:
        unmatched = self.characters.unmatched()
        shown = ', '.join(map(repr, unmatched[:MOST_NAMED])) + (' ...' if len(unmatched) > MOST_NAMED else '')
        entries = f'{len(unmatched)} of {len(self.characters)} entries of the dictionary'
        reason = 'each must be one character, once, and in the case and normal form of the texts'
        return [*super().notes, *([f'{entries} match no character of a text: {shown}; {reason}'] if unmatched else [])]

    def picture(self, index: int) -> Image:
        """Return the image with its text as a caption."""
        return add_caption(*self.source.read(Draw(index)))


def show(character: str) -> str:
    """Return a character as it is printed, or its number if nothing could be seen of it."""
    return character if character.isprintable() and not unicodedata.combining(character) else f'U+{ord(character):04X}'


def ctc_steps_needed(text: str) -> int:
    """Return the time steps that CTC needs for `text`: one per character, and a blank between two equal neighbours."""
    return len(text) + sum(one == next_one for one, next_one in pairwise(text))
