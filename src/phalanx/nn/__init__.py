"""Building blocks of networks: layers, backbones, reproducible dropout, number formats. Imports parallel."""
