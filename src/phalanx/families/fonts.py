"""Fonts for texts in pictures."""

from collections.abc import Iterable

import PIL.ImageFont

from phalanx.synthetic.lines import Fonts

FONT_SIZE = 18  # pixels
Font = PIL.ImageFont.FreeTypeFont | PIL.ImageFont.ImageFont


def find_fonts(texts: Iterable[str]) -> Fonts | None:
    """Return the system fonts that cover characters of `texts`; None if Pillow's own Latin font suffices or none is found."""
    characters = sorted(set().union(*texts))
    try:
        return None if ''.join(characters).isascii() else Fonts(None, characters)
    except FileNotFoundError:
        return None


def find_font(text: str, fonts: Fonts | None, size: float = FONT_SIZE) -> Font:
    """Return the first of `fonts` that covers `text`; Pillow's own font for ASCII and if none does."""
    covering = [] if fonts is None or text.isascii() else fonts.writing(text)
    return PIL.ImageFont.truetype(str(covering[0]), size) if covering else PIL.ImageFont.load_default(size)
