"""Structure tokens, and the trees that they make. Golden numbers of the encoding: tests/golden/test_table_labels.py."""

from __future__ import annotations

import pytest

from phalanx.families.table.annotation import Cell, Table
from phalanx.families.table.tokens import EMPTY_CELLS, Vocabulary
from phalanx.families.table.tree import Element, build_tree, to_html
from phalanx.runtime.table import steps

PLAIN = Table(('<tr>', '<td>', '</td>', '<td>', '</td>', '</tr>'), (Cell(('a',), (1, 2, 3, 4)), Cell((' ',))))


def test_there_must_be_one_cell_per_token_that_begins_one() -> None:
    with pytest.raises(ValueError, match='has 1 cells, but 0 are described'):
        Table(('<tr>', '<td>', '</td>', '</tr>'))


def test_merged_cells_make_tables_shorter() -> None:
    structure = ('<tr>', '<td>', '</td>', '', '<td', ' colspan="2"', '>', '</td>', '</tr>')
    assert Vocabulary().length(structure) == 7
    assert Vocabulary(merge_cells=False).length(structure) == 8


@pytest.mark.parametrize('merge_cells', [True, False])
def test_an_encoded_table_can_be_decoded(merge_cells: bool) -> None:
    vocabulary = Vocabulary(merge_cells=merge_cells)
    ids = vocabulary.encode(PLAIN, (10, 10)).ids.tolist()
    places = steps(ids, vocabulary.end)
    assert ''.join(vocabulary.tokens[ids[place]] for place in places) == ''.join(PLAIN.structure)
    assert places == list(range(1, len(ids) - 1))


def test_empty_cells_are_named_after_their_content() -> None:
    """A cell of one blank is the second kind of TableMASTER's list."""
    vocabulary = Vocabulary(name_empty_cells=True)
    tokens = tuple(vocabulary.tokens[number] for number in vocabulary.encode(PLAIN, (10, 10)).ids[1:-1])
    assert tokens == ('<tr>', '<td></td>', '<eb1></eb1>', '</tr>')
    assert len(vocabulary) == 30 + len(EMPTY_CELLS) == 41
    assert to_html(build_tree(tokens)) == '<table><tr><td></td><td></td></tr></table>'


def test_boxes_are_relative_to_the_size_of_the_image() -> None:
    target = Vocabulary().encode(PLAIN, (8, 4))
    assert target.boxes[2].tolist() == [0.25, 0.25, 0.75, 0.5]
    assert target.has_box.tolist() == [False, False, True, False, False, False]


def rows(node: Element) -> str:
    """A tree in short: (tr td td)."""
    spans = f'{node.colspan}x{node.rowspan}' if (node.colspan, node.rowspan) != (1, 1) else ''
    inside = ' '.join([node.tag + spans, *(rows(child) for child in node.children)])
    return f'({inside})' if node.children else inside


@pytest.mark.parametrize(
    ('tokens', 'expected'),
    [
        pytest.param('<tr> <td></td> <td></td> </tr>', '(table (tr td td))', id='well-formed'),
        pytest.param('<thead> <tr> <td></td> </tr> </thead> <tbody> </tbody>', '(table (thead (tr td)) tbody)', id='sections'),
        pytest.param('<tr> <td |colspan="2" |rowspan="3" > </td> </tr>', '(table (tr td2x3))', id='spans'),
        pytest.param('<tr> <td></td> <tr> <td></td>', '(table (tr td) (tr td))', id='a row ends where the next one begins'),
        pytest.param('<thead> <tr> <tbody> <tr>', '(table (thead tr) (tbody tr))', id='a section ends its predecessor'),
        pytest.param('</tr> </tbody> > |colspan="2" <tr>', '(table tr)', id='what closes nothing is passed over'),
        pytest.param('<td></td> <tr> <td |colspan="2" <td></td>', '(table td (tr td2x1 td))', id='a tag that never ends'),
        pytest.param('<tbody> <tr> <td></td> </tbody> <tr>', '(table (tbody (tr td)) tr)', id='a section closes its rows'),
    ],
)
def test_any_sequence_of_tokens_makes_a_tree(tokens: str, expected: str) -> None:
    """By hand: the trees that browsers build from such HTML."""
    assert rows(build_tree([token.replace('|', ' ') for token in tokens.split(' ')])) == expected


def test_contents_go_into_cells_in_order() -> None:
    node = build_tree(
        ('<tr>', '<td></td>', '<td', ' colspan="2"', '>', '</td>', '<td></td>', '</tr>'), [('a',), ('<b>', 'x', '</b>')]
    )
    assert to_html(node) == '<table><tr><td>a</td><td colspan="2"><b>x</b></td><td></td></tr></table>'


def test_html_never_contains_scripts() -> None:
    node = build_tree(['<td></td>', '<td></td>'], ['<script>', ('<img onerror="x">', '&', '<b onclick="y">')])
    assert to_html(node) == (
        '<table><td>&lt;script&gt;</td><td>&lt;img onerror=&quot;x&quot;&gt;&amp;&lt;b onclick=&quot;y&quot;&gt;</td></table>'
    )
