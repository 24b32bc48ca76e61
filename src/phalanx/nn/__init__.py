"""What networks are made of: layers, backbones, reproducible dropout, number formats. Imports parallel."""
