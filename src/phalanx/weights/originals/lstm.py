"""Paddle keeps the parameters of an LSTM under two names each."""


def lstm_aliases(place: str, *, layers: int, bidirectional: bool = False) -> dict[str, str]:
    """The second name of each parameter of the LSTM at `place` -> the first, which is torch's too."""
    cells = (('cell_fw', ''), ('cell_bw', '_reverse')) if bidirectional else (('cell', ''),)
    return {
        f'{place}.{layer}.{cell}.{parameter}': f'{place}.{parameter}_l{layer}{direction}'
        for layer in range(layers)
        for cell, direction in cells
        for parameter in ('weight_ih', 'weight_hh', 'bias_ih', 'bias_hh')
    }
