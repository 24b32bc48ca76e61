"""`phalanx data`: what a data set holds and what is wrong with it (check), data sets made of what people have (prepare), and of
other data sets (rewrite)."""
