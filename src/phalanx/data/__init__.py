"""`phalanx data`: what a data set holds and what is wrong with it (check), and data sets made of what people have (prepare)."""
